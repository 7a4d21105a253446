package dev.tenure.shop;

import org.springframework.beans.factory.annotation.Value;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.stereotype.Component;
import org.springframework.transaction.annotation.Transactional;

/** A table that checks tokens: it keeps the largest one of each account, and refuses what comes with a smaller one. */
@Component
class Ledger {
    /** A write that came too late. */
    static final class StaleTokenException extends RuntimeException {
        private static final long serialVersionUID = 1;

        StaleTokenException(String account, long token) {
            super(account + " has seen a larger token than " + token);
        }
    }

    private final JdbcTemplate jdbc;
    private final String instance;

    Ledger(JdbcTemplate jdbc, @Value("${shop.instance}") String instance) {
        this.jdbc = jdbc;
        this.instance = instance;
    }

    /** Writes to an account, in one transaction with the check. */
    @Transactional
    public void write(String account, long token) {
        int changed = jdbc.update("update account set token = ? where name = ? and token <= ?", token, account, token);
        if (changed == 0) {
            throw new StaleTokenException(account, token);
        }
        jdbc.update("insert into writes (account, token, instance) values (?, ?, ?)", account, token, instance);
    }
}
