import java.net.*;
import java.net.http.*;

/** Gets a page by both clients that Java has. */
class Get {
    public static void main(String[] args) throws Exception {
        var to = URI.create(args[0]);
        System.out.print(HttpClient.newHttpClient().send(HttpRequest.newBuilder(to).build(), HttpResponse.BodyHandlers.ofString()).body());
        System.out.write(to.toURL().openStream().readAllBytes());
        System.out.flush();
    }
}
