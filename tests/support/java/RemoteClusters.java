// What Kafka's own RemoteClusterUtils says of a cluster: bootstrap server, alias of an upstream cluster, and what to
// ask for: "topics", "hops ALIAS", or "offsets GROUP". Prints a line an answer.

import java.time.Duration;
import java.util.Map;
import java.util.TreeSet;
import org.apache.kafka.connect.mirror.RemoteClusterUtils;

class RemoteClusters {
    public static void main(String[] arguments) throws Exception {
        Map<String, Object> properties = Map.of("bootstrap.servers", arguments[0]);
        String upstream = arguments[1];
        for (int at = 2; at < arguments.length; at++) {
            String[] words = arguments[at].split(" ");
            switch (words[0]) {
                case "topics" -> {
                    print("heartbeats", RemoteClusterUtils.heartbeatTopics(properties));
                    print("checkpoints", RemoteClusterUtils.checkpointTopics(properties));
                    print("upstream", RemoteClusterUtils.upstreamClusters(properties));
                }
                case "hops" -> System.out.println(
                    "hops " + words[1] + " " + RemoteClusterUtils.replicationHops(properties, words[1]));
                case "offsets" -> RemoteClusterUtils
                    .translateOffsets(properties, upstream, words[1], Duration.ofSeconds(30))
                    .forEach((tp, o) -> System.out.println(String.join(
                        " ", "offset", words[1], tp.topic(), "" + tp.partition(), "" + o.offset(), o.metadata())));
                default -> throw new IllegalArgumentException(arguments[at]);
            }
        }
    }

    private static void print(String name, Iterable<String> values) {
        TreeSet<String> sorted = new TreeSet<>();
        values.forEach(sorted::add);
        System.out.println(name + " " + String.join(" ", sorted));
    }
}
