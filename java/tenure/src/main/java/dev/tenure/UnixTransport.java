package dev.tenure;

import java.io.ByteArrayOutputStream;
import java.io.EOFException;
import java.io.IOException;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.HashMap;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.CompletableFuture;

/**
 * By a Unix socket, which {@code java.net.http} does not know: HTTP/1.1 as far as {@code tenure serve} speaks it.
 *
 * <p>It is strict: an answer whose length is not certain is none, and a connection on which anything was odd is not used again, since the
 * next answer on it could be that of another request.
 */
final class UnixTransport implements Transport {
    private static final int HEAD_MAX = 32 * 1024;
    /** More than sixteen items of 256 KiB each in base64. */
    private static final int BODY_MAX = 16 * 1024 * 1024;
    /** The server closes what rests for 75 s. */
    private static final long IDLE_NANOS_MAX = 60_000_000_000L;
    private static final int IDLE_MAX = 16;

    private final Path path;
    private final Map<String, String> headers;
    private final Deque<Connection> idle = new ArrayDeque<>();

    UnixTransport(Path path, Map<String, String> headers) {
        this.path = path;
        this.headers = headers;
    }

    @Override
    public Call send(Request request) {
        Exchange exchange = new Exchange(request);
        Threads.pool().execute(exchange::run);
        return exchange;
    }

    @Override
    public void close() {
        synchronized (idle) {
            idle.forEach(Connection::close);
            idle.clear();
        }
    }

    private Connection resting() {
        synchronized (idle) {
            // The latest first; what lies below it is older.
            Connection connection = idle.pollLast();
            if (connection == null || System.nanoTime() - connection.since < IDLE_NANOS_MAX) {
                return connection;
            }
            connection.close();
            idle.forEach(Connection::close);
            idle.clear();
            return null;
        }
    }

    private void rest(Connection connection) {
        connection.since = System.nanoTime();
        synchronized (idle) {
            idle.addLast(connection);
            if (idle.size() > IDLE_MAX) {
                idle.pollFirst().close();
            }
        }
    }

    private final class Exchange implements Call {
        private final Request request;
        private final CompletableFuture<Answer> answer = new CompletableFuture<>();
        private Connection connection;
        private boolean isAbandoned;

        Exchange(Request request) {
            this.request = request;
        }

        @Override
        public CompletableFuture<Answer> answer() {
            return answer;
        }

        @Override
        public synchronized void abandon() {
            isAbandoned = true;
            if (connection != null) {
                connection.close();
            }
        }

        /** Whether it still is to be done on this connection. */
        private synchronized boolean takes(Connection taken) {
            connection = taken;
            return !isAbandoned;
        }

        private void run() {
            Connection taken = null;
            try {
                taken = resting();
                if (taken == null) {
                    taken = new Connection(SocketChannel.open(UnixDomainSocketAddress.of(path)));
                }
                if (!takes(taken)) {
                    throw new IOException("abandoned");
                }
                taken.write(head(request), request.body());
                Answer read = taken.read();
                boolean isOwn = takes(null);
                if (isOwn && taken.isReusable()) {
                    rest(taken);
                } else {
                    taken.close();
                }
                answer.complete(read);
            } catch (IOException | RuntimeException e) {
                if (taken != null) {
                    taken.close();
                }
                answer.completeExceptionally(e instanceof IOException ? e : new IOException(e));
            }
        }
    }

    private byte[] head(Request request) {
        StringBuilder head = new StringBuilder(request.method() + " " + request.path() + " HTTP/1.1\r\nHost: localhost\r\n");
        headers.forEach((name, value) -> head.append(name).append(": ").append(value).append("\r\n"));
        if (request.body() != null) {
            head.append("Content-Type: application/json\r\nContent-Length: ").append(request.body().length).append("\r\n");
        }
        return head.append("\r\n").toString().getBytes(StandardCharsets.ISO_8859_1);
    }

    /** One connection, with what was read of it and not yet understood. */
    private static final class Connection {
        private final SocketChannel channel;
        private final ByteBuffer input = ByteBuffer.allocate(16 * 1024).limit(0);
        private boolean isLast;
        private long since;

        Connection(SocketChannel channel) {
            this.channel = channel;
        }

        void close() {
            try {
                channel.close();
            } catch (IOException e) {
                // It is of no use either way.
            }
        }

        boolean isReusable() {
            return !isLast && !input.hasRemaining();
        }

        void write(byte[] head, byte[] body) throws IOException {
            ByteArrayOutputStream whole = new ByteArrayOutputStream();
            whole.write(head);
            if (body != null) {
                whole.write(body);
            }
            ByteBuffer out = ByteBuffer.wrap(whole.toByteArray());
            while (out.hasRemaining()) {
                channel.write(out);
            }
        }

        private int octet() throws IOException {
            if (!input.hasRemaining()) {
                input.clear();
                int count = channel.read(input);
                input.flip();
                if (count <= 0) {
                    input.limit(0);
                    throw new EOFException("the connection ended before the answer");
                }
            }
            return input.get() & 0xff;
        }

        private String line(int most) throws IOException {
            StringBuilder line = new StringBuilder();
            for (int octet = octet(); octet != '\n'; octet = octet()) {
                line.append((char) octet);
                if (line.length() > most) {
                    throw new IOException("a line of the answer is too long");
                }
            }
            int end = line.length() - 1;
            if (end < 0 || line.charAt(end) != '\r' || line.indexOf("\r") != end) {
                throw new IOException("a line of the answer does not end with CR LF");
            }
            line.setLength(end);
            return line.toString();
        }

        Answer read() throws IOException {
            for (;;) {
                String first = line(HEAD_MAX);
                if (!first.matches("HTTP/1\\.[01] [1-5][0-9]{2}( .*)?")) {
                    throw new IOException("no HTTP/1.1: " + first.substring(0, Math.min(40, first.length())));
                }
                int status = Integer.parseInt(first.substring(9, 12));
                Map<String, String> headers = headers();
                if (status == 101) {
                    throw new IOException("the protocol changes");
                }
                if (status >= 200) {
                    isLast = first.startsWith("HTTP/1.0")
                            || headers.getOrDefault("connection", "").toLowerCase(Locale.ROOT).contains("close");
                    return new Answer(status, headers, body(status, headers));
                }
            }
        }

        private Map<String, String> headers() throws IOException {
            Map<String, String> headers = new HashMap<>();
            int bytes = 0;
            for (String line = line(HEAD_MAX); !line.isEmpty(); line = line(HEAD_MAX)) {
                bytes += line.length();
                int colon = line.indexOf(':');
                if (bytes > HEAD_MAX || colon <= 0 || !line.substring(0, colon).matches("[!#$%&'*+.^_`|~0-9A-Za-z-]+")) {
                    throw new IOException("a header of the answer is not understood");
                }
                String name = line.substring(0, colon).toLowerCase(Locale.ROOT);
                String value = line.substring(colon + 1).strip();
                String before = headers.put(name, value);
                boolean isOfLength = name.equals("content-length") || name.equals("transfer-encoding");
                if (isOfLength && before != null) {
                    throw new IOException("two lengths of one answer");
                }
            }
            return headers;
        }

        private byte[] body(int status, Map<String, String> headers) throws IOException {
            String length = headers.get("content-length");
            String coding = headers.get("transfer-encoding");
            if (length != null && coding != null) {
                throw new IOException("two lengths of one answer");
            }
            if (status == 204 || status == 304) {
                return new byte[0];
            }
            if (coding != null) {
                if (!coding.equalsIgnoreCase("chunked")) {
                    throw new IOException("an unknown transfer encoding");
                }
                return chunks();
            }
            if (length == null || !length.matches("[0-9]{1,8}")) {
                throw new IOException("an answer without a length");
            }
            ByteArrayOutputStream body = new ByteArrayOutputStream();
            take(Integer.parseInt(length), body);
            return body.toByteArray();
        }

        private void take(int count, ByteArrayOutputStream into) throws IOException {
            if (into.size() + (long) count > BODY_MAX) {
                throw new IOException("the answer is too large");
            }
            for (int i = 0; i < count; i++) {
                into.write(octet());
            }
        }

        private byte[] chunks() throws IOException {
            ByteArrayOutputStream body = new ByteArrayOutputStream();
            for (;;) {
                String size = line(64).split(";", 2)[0].strip();
                if (!size.matches("[0-9A-Fa-f]{1,7}")) {
                    throw new IOException("a chunk without a size");
                }
                int count = Integer.parseInt(size, 16);
                if (count == 0) {
                    // Trailers, which say nothing here, up to an empty line.
                    headers();
                    return body.toByteArray();
                }
                take(count, body);
                if (!line(2).isEmpty()) {
                    throw new IOException("a chunk longer than its size");
                }
            }
        }
    }
}
