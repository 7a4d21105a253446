package dev.tenure;

import java.util.Map;

/**
 * What went wrong, by {@linkplain #kind() kind}. Those that programs catch most have a class of their own.
 *
 * <p>{@link #hint()} says what to do about it, and {@link #requestId()} finds it in the log of the server.
 */
public class TenureException extends RuntimeException {
    private static final long serialVersionUID = 1;

    private final Kind kind;
    private final String hint;
    private final String resource;
    private final String requestId;

    TenureException(Kind kind, String text, String hint, String resource, Throwable cause) {
        this(kind, text, hint, resource, null, cause);
    }

    TenureException(Kind kind, String text, String hint, String resource, String requestId, Throwable cause) {
        super(text, cause);
        this.kind = kind;
        this.hint = hint;
        this.resource = resource;
        this.requestId = requestId;
    }

    /** Reads a problem document (RFC 9457). {@code null}: it is not one of tenure's. */
    static TenureException of(Map<?, ?> problem) {
        Kind kind = problem.get("kind") instanceof String name ? Kind.of(name) : null;
        if (kind == null) {
            return null;
        }
        String text = text(problem, "detail");
        String said = text == null ? text(problem, "title") : text;
        String hint = text(problem, "hint");
        String resource = text(problem, "resource");
        String id = text(problem, "request_id");
        return switch (kind) {
            case LOST -> new LostException(said, hint, resource, id);
            case UNAVAILABLE -> new UnavailableException(said, hint, resource, id, null);
            case REFUSED -> new RefusedException(said, hint, resource, id);
            default -> new TenureException(kind, said, hint, resource, id, null);
        };
    }

    private static String text(Map<?, ?> problem, String field) {
        return problem.get(field) instanceof String text ? text : null;
    }

    /** What it means to the program. */
    public final Kind kind() {
        return kind;
    }

    /** What to do about it; {@code null} if there is nothing to say. */
    public final String hint() {
        return hint;
    }

    /** The name of the lock or the queue; {@code null} if it is about none. */
    public final String resource() {
        return resource;
    }

    /** What the log of the server calls the request; {@code null} if the server has not answered. */
    public final String requestId() {
        return requestId;
    }

    /** What was said first, without the resource and the hint. */
    final String text() {
        return super.getMessage();
    }

    /** The text, the resource and the hint. */
    @Override
    public String getMessage() {
        String text = super.getMessage();
        String about = resource == null || text != null && text.contains("\"" + resource + "\"") ? "" : " (\"" + resource + "\")";
        return text + about + (hint == null ? "" : ": " + hint);
    }
}
