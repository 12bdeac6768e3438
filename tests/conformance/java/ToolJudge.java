import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.apache.kafka.common.utils.Exit;

/** Runs the main method of Kafka's command line tools in this JVM: a JVM for each would cost a second. */
final class ToolJudge {
    /** Thrown where a tool would end the process. */
    private static final class Ended extends Error {
        private static final long serialVersionUID = 1L;
    }

    private Integer code;

    void run(JsonNode command, ObjectNode answer) throws Exception {
        List<String> arguments = new ArrayList<>();
        command.get("arguments").forEach(each -> arguments.add(each.asText()));
        var main = Class.forName(command.get("main").asText()).getMethod("main", String[].class);
        var printed = new ByteArrayOutputStream();
        var complained = new ByteArrayOutputStream();
        PrintStream out = System.out;
        PrintStream err = System.err;
        InputStream in = System.in;
        code = null;
        Exit.setExitProcedure(this::end);
        Exit.setHaltProcedure(this::end);
        System.setOut(new PrintStream(printed, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(complained, true, StandardCharsets.UTF_8));
        System.setIn(new ByteArrayInputStream(command.path("input").asText().getBytes(StandardCharsets.UTF_8)));
        try {
            main.invoke(null, (Object) arguments.toArray(String[]::new));
            end(0, null);
        } catch (InvocationTargetException failure) {
            if (!(failure.getCause() instanceof Ended)) {
                throw failure;
            }
        } catch (Ended ended) {
            // The usual way out.
        } finally {
            System.setOut(out);
            System.setErr(err);
            System.setIn(in);
            Exit.resetExitProcedure();
            Exit.resetHaltProcedure();
        }
        answer.put("code", code);
        answer.put("output", printed.toString(StandardCharsets.UTF_8));
        answer.put("complaint", complained.toString(StandardCharsets.UTF_8));
    }

    private void end(int status, String message) {
        // A tool that catches everything meets its own exit and calls it again; the first call counts.
        if (code == null) {
            code = status;
        }
        throw new Ended();
    }
}
