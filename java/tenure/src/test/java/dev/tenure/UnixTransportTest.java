package dev.tenure;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.net.StandardProtocolFamily;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** An answer whose length is not certain is none. */
final class UnixTransportTest {
    private static final Transport.Request REQUEST = new Transport.Request("GET", "/", null);

    /** Answers each connection once with this, and closes it. */
    private static Transport.Answer answered(String text) throws Exception {
        Path path = Files.createTempDirectory("tenure-java").resolve("s");
        try (ServerSocketChannel server = ServerSocketChannel.open(StandardProtocolFamily.UNIX)) {
            server.bind(UnixDomainSocketAddress.of(path));
            Threads.daemon("server", () -> {
                try (SocketChannel channel = server.accept()) {
                    channel.read(ByteBuffer.allocate(4096));
                    channel.write(ByteBuffer.wrap(text.getBytes(StandardCharsets.ISO_8859_1)));
                } catch (java.io.IOException e) {
                    // The test fails by the answer that is missing.
                }
            }).start();
            return new UnixTransport(path, Map.of()).send(REQUEST).answer().get(20, TimeUnit.SECONDS);
        } finally {
            Files.delete(path);
            Files.delete(path.getParent());
        }
    }

    @Test
    void lengthsAndChunksAreUnderstood() throws Exception {
        Transport.Answer answer = answered("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\nA: b \r\n\r\n{}rest");
        assertEquals("{}", new String(answer.body(), StandardCharsets.UTF_8));
        assertEquals("b", answer.headers().get("a"));
        answer = answered("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{\"\r\n3;x=y\r\na\":\r\n2\r\n1}\r\n0\r\nT: u\r\n\r\n");
        assertEquals("{\"a\":1}", new String(answer.body(), StandardCharsets.UTF_8));
        assertEquals(0, answered("HTTP/1.1 204 No Content\r\n\r\n").body().length);
    }

    @ParameterizedTest
    @ValueSource(
            strings = {
                "", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\n\r\n{}", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{}",
                "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}", "HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\n{}",
                "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}", "HTTP/1.1 200 OK\nContent-Length: 2\n\n{}",
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n{}", "HTTP/1.1 200 OK\r\nContent-Length : 2\r\n\r\n{}",
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}x\r\n0\r\n\r\n", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n",
                "HTTP/2 200\r\nContent-Length: 2\r\n\r\n{}", "HTTP/1.1 101 Switching\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n"
            })
    void whatIsNotCertainIsNoAnswer(String text) {
        assertThrows(ExecutionException.class, () -> answered(text));
    }
}
