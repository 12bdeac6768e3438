import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HexFormat;
import javax.security.auth.x500.X500Principal;
import org.apache.kafka.common.security.ssl.SslPrincipalMapper;

/** Says how Java spells names (one line of hex each), and what Kafka's rules make of names (rules, tab, name). */
public class JavaNames {
    public static void main(String[] words) throws Exception {
        var out = new java.io.PrintStream(System.out, true, "UTF-8");
        for (String line : Files.readAllLines(Path.of(words[0]))) {
            String said;
            try {
                if (line.startsWith("name ")) {
                    said = new X500Principal(HexFormat.of().parseHex(line.substring(5))).getName();
                } else {
                    String[] asked = line.substring(5).split("\t", -1);
                    said = SslPrincipalMapper.fromRules(asked[0]).getName(asked[1]);
                }
                out.println("ok " + HexFormat.of().formatHex(said.getBytes("UTF-8")));
            } catch (Exception error) {
                out.println("no " + error.getClass().getSimpleName());
            }
        }
    }
}
