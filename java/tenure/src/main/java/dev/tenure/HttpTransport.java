package dev.tenure;

import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import javax.net.ssl.SSLContext;

/** By TCP, with or without TLS: {@code java.net.http}. */
final class HttpTransport implements Transport {
    private final HttpClient client;
    private final String base;
    private final Map<String, String> headers;

    HttpTransport(String base, Map<String, String> headers, Duration connectMax, SSLContext tls) {
        HttpClient.Builder builder = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).connectTimeout(connectMax);
        if (tls != null) {
            builder.sslContext(tls);
        }
        this.client = builder.build();
        this.base = base;
        this.headers = headers;
    }

    @Override
    public Call send(Request request) {
        HttpRequest.BodyPublisher body = request.body() == null
                ? HttpRequest.BodyPublishers.noBody()
                : HttpRequest.BodyPublishers.ofByteArray(request.body());
        HttpRequest.Builder builder = HttpRequest.newBuilder(URI.create(base + request.path())).method(request.method(), body);
        headers.forEach(builder::header);
        if (request.body() != null) {
            builder.header("Content-Type", "application/json");
        }
        CompletableFuture<HttpResponse<byte[]>> sent = client.sendAsync(builder.build(), HttpResponse.BodyHandlers.ofByteArray());
        CompletableFuture<Answer> answer = sent.thenApply(HttpTransport::answer);
        return new Call() {
            @Override
            public CompletableFuture<Answer> answer() {
                return answer;
            }

            @Override
            public void abandon() {
                // That of `sendAsync` itself: only this one ends the exchange.
                sent.cancel(true);
            }
        };
    }

    private static Answer answer(HttpResponse<byte[]> response) {
        Map<String, String> headers = new HashMap<>();
        response.headers().map().forEach((name, values) -> headers.put(name.toLowerCase(java.util.Locale.ROOT), values.get(0)));
        return new Answer(response.statusCode(), headers, response.body());
    }

    @Override
    public void close() {
        // Its threads end when nobody refers to it.
    }
}
