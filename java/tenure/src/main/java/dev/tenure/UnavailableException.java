package dev.tenure;

/** Nobody has answered in time: the outcome is unknown. What was claimed is withdrawn in the background. */
public final class UnavailableException extends TenureException {
    private static final long serialVersionUID = 1;

    UnavailableException(String text, String hint, String resource, String requestId, Throwable cause) {
        super(Kind.UNAVAILABLE, text, hint, resource, requestId, cause);
    }
}
