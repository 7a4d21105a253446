package dev.tenure;

/** The token of this client does not allow it, or the server knows no such token. */
public final class RefusedException extends TenureException {
    private static final long serialVersionUID = 1;

    RefusedException(String text, String hint, String resource, String requestId) {
        super(Kind.REFUSED, text, hint, resource, requestId, null);
    }
}
