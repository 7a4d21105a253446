package dev.tenure;

/** A leader's lease. */
public final class Term extends Lease {
    Term(Tenure tenure, Hold hold) {
        super(tenure, hold);
    }

    /**
     * Shows a value of up to 256 KiB to everybody who asks for the leader, until the term ends. One round trip, repeated if it is not answered.
     *
     * @throws LostException if the term has ended
     * @throws UnavailableException if nobody answers
     */
    public void publish(byte[] value) {
        check();
        tenure.publish(hold, value, null, null);
    }
}
