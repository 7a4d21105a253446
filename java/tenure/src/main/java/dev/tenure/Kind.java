package dev.tenure;

/** What an error means to a program: a kind exists only where its caller would act differently. */
public enum Kind {
    /** The lease has ended without its user: stop the work now. */
    LOST,
    /** It was not acquired in time: nothing is held. */
    TIMEOUT,
    /** Others hold it, and the call does not wait. */
    BUSY,
    /** The id of the claim is used up. The client takes another by itself. */
    FINISHED,
    /** Nobody has answered in time: the outcome is unknown. */
    UNAVAILABLE,
    /** The name is in use with another kind or capacity: fix the code. */
    CONFLICT,
    /** There is nothing of that name. */
    NOT_FOUND,
    /** The call breaks a stated limit: fix the code. */
    INVALID,
    /** The token of this client does not allow it, or there is none. */
    REFUSED,
    /** The engine behind the server cannot do it. */
    UNSUPPORTED,
    /** The claim lives in another instance of the server: on that engine run one. */
    ELSEWHERE,
    /** A bug of tenure, or something that is no tenure server has answered. */
    INTERNAL;

    /** By the {@code kind} of a problem document; {@code null} of one that is not known. */
    static Kind of(String name) {
        return switch (name) {
            case "lost" -> LOST;
            case "finished" -> FINISHED;
            case "busy" -> BUSY;
            case "unavailable", "overloaded", "rate", "too_slow" -> UNAVAILABLE;
            case "conflict" -> CONFLICT;
            case "not_found" -> NOT_FOUND;
            case "invalid", "method_not_allowed", "too_large", "unsupported_media_type" -> INVALID;
            case "unauthorized", "forbidden" -> REFUSED;
            case "unsupported" -> UNSUPPORTED;
            case "elsewhere" -> ELSEWHERE;
            case "internal" -> INTERNAL;
            default -> null;
        };
    }
}
