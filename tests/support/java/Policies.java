import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import java.util.regex.Pattern;
import java.util.regex.PatternSyntaxException;
import org.apache.kafka.connect.mirror.DefaultReplicationPolicy;
import org.apache.kafka.connect.mirror.IdentityReplicationPolicy;

/**
 * Answers of Kafka's own classes. Lines of standard input, fields with tabs between, each escaped as Java strings:
 *   policy CLASS SEPARATOR INTERNAL ALIAS TOPIC  -> what each method answers
 *   regex PATTERN NAME                           -> whether the whole name matches, or "refused"
 */
public class Policies {
    public static void main(String[] args) throws Exception {
        var in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        var out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        for (String line; (line = in.readLine()) != null;) {
            String[] fields = line.split("\t", -1);
            for (int i = 0; i < fields.length; i++) fields[i] = unescape(fields[i]);
            out.println(escape(fields[0].equals("policy") ? policy(fields) : regex(fields[1], fields[2])));
        }
        out.flush();
    }

    private static String policy(String[] fields) {
        Map<String, Object> config = new HashMap<>();
        config.put("replication.policy.separator", fields[2]);
        config.put("replication.policy.internal.topic.separator.enabled", fields[3]);
        config.put("source.cluster.alias", fields[4]);
        DefaultReplicationPolicy p =
            fields[1].equals("Default") ? new DefaultReplicationPolicy() : new IdentityReplicationPolicy();
        p.configure(config);
        String topic = fields[5], alias = fields[4];
        return String.join("|", p.formatRemoteTopic(alias, topic), "" + p.topicSource(topic),
            "" + p.upstreamTopic(topic), p.originalTopic(topic), p.heartbeatsTopic(), p.checkpointsTopic(alias),
            p.offsetSyncsTopic(alias), "" + p.isHeartbeatsTopic(topic), "" + p.isCheckpointsTopic(topic),
            "" + p.isMM2InternalTopic(topic), "" + p.isInternalTopic(topic));
    }

    private static String regex(String pattern, String name) {
        try {
            return "" + Pattern.compile(pattern).matcher(name).matches();
        } catch (PatternSyntaxException error) {
            return "refused";
        }
    }

    private static String unescape(String text) {
        var out = new StringBuilder();
        for (int i = 0; i < text.length(); i++) {
            if (text.charAt(i) != '\\') {
                out.append(text.charAt(i));
            } else if (text.charAt(++i) == 'u') {
                out.append((char) Integer.parseInt(text.substring(i + 1, i + 5), 16));
                i += 4;
            } else {
                out.append(text.charAt(i));
            }
        }
        return out.toString();
    }

    private static String escape(String text) {
        var out = new StringBuilder();
        for (char c : text.toCharArray()) {
            if (c == '\\') out.append("\\\\");
            else if (c < 32 || c > 126) out.append(String.format("\\u%04x", (int) c));
            else out.append(c);
        }
        return out.toString();
    }
}
