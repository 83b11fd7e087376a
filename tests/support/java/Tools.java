import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import org.apache.kafka.common.utils.internals.Exit;

/**
 * Runs Kafka's own tools one after the other in this process. Each line of stdin is a tool: its class and its arguments,
 * with tabs between. A form feed stands before what each prints.
 */
class Tools {
    public static void main(String[] arguments) throws Exception {
        Exit.setExitProcedure((status, message) -> {
            if (status != 0) {
                throw new IllegalStateException("exit status " + status + ": " + message);
            }
        });
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split("\t");
            System.out.print('\f');
            Class<?> tool = Class.forName(words[0]);
            tool.getMethod("main", String[].class).invoke(null, (Object) Arrays.copyOfRange(words, 1, words.length));
            System.out.flush();
        }
    }
}
