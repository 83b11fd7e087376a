import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;

/**
 * Runs Kafka's own tools one after the other in this process, those of any release. Each line of stdin is a tool: its
 * class and its arguments, with tabs between. Behind what each prints stands a line of a form feed and 0, or 1 if the
 * tool failed.
 */
class Tools {
    public static void main(String[] arguments) throws Exception {
        throwInPlaceOfExit();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split("\t");
            int status = 0;
            try {
                Class<?> tool = Class.forName(words[0]);
                Object own = Arrays.copyOfRange(words, 1, words.length);
                tool.getMethod("main", String[].class).invoke(null, own);
            } catch (InvocationTargetException failed) {
                failed.getCause().printStackTrace(System.out);
                status = 1;
            }
            System.out.println("\f" + status);
            System.out.flush();
        }
    }

    /** Let a tool that would end this process throw. By reflection, because 4.4 has moved the class. */
    private static void throwInPlaceOfExit() throws Exception {
        Class<?> exit;
        try {
            exit = Class.forName("org.apache.kafka.common.utils.internals.Exit");
        } catch (ClassNotFoundException older) {
            exit = Class.forName("org.apache.kafka.common.utils.Exit");
        }
        Class<?> procedure = Class.forName(exit.getName() + "$Procedure");
        Object thrower = Proxy.newProxyInstance(exit.getClassLoader(), new Class<?>[] {procedure}, (proxy, method, values) -> {
            if ((int) values[0] != 0) {
                throw new IllegalStateException("exit status " + values[0] + ": " + values[1]);
            }
            return null;
        });
        exit.getMethod("setExitProcedure", procedure).invoke(null, thrower);
    }
}
