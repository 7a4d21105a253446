package dev.tenure;

/** The lease has ended without its user: another may hold the lock now. Stop the work. */
public final class LostException extends TenureException {
    private static final long serialVersionUID = 1;

    LostException(String text, String hint, String resource, String requestId) {
        super(Kind.LOST, text, hint, resource, requestId, null);
    }

    LostException(String text, String resource) {
        this(text, null, resource, null);
    }

    /** The same loss, told once more. */
    LostException(LostException told) {
        super(Kind.LOST, told.text(), told.hint(), told.resource(), told.requestId(), told);
    }
}
