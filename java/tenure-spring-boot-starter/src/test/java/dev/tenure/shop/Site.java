package dev.tenure.shop;

import dev.tenure.Served;
import java.sql.SQLException;
import java.util.ArrayList;
import java.util.List;
import java.util.function.BooleanSupplier;
import javax.sql.DataSource;
import org.h2.jdbcx.JdbcDataSource;
import org.h2.tools.Server;
import org.springframework.boot.builder.SpringApplicationBuilder;
import org.springframework.context.ConfigurableApplicationContext;
import org.springframework.jdbc.core.JdbcTemplate;

/** What the instances share: a Redis, a {@code tenure serve} in front of it, and a database with a table that checks tokens. */
final class Site implements AutoCloseable {
    final Redis redis;
    final Served served;
    final JdbcTemplate jdbc;
    private final Server database;
    private final String databaseUrl;

    Site() throws Exception {
        redis = new Redis();
        served = new Served(redis.url(), Served.Way.TCP);
        database = Server.createTcpServer("-tcpPort", "0", "-ifNotExists").start();
        databaseUrl = "jdbc:h2:tcp://127.0.0.1:" + database.getPort() + "/mem:shop" + database.getPort() + ";DB_CLOSE_DELAY=-1";
        jdbc = new JdbcTemplate(dataSource());
        for (String sql : List.of(
                "create table account (name varchar primary key, token bigint not null)",
                "insert into account values ('account', 0), ('load', 0)",
                "create table writes (seq bigint generated always as identity primary key, account varchar, token bigint, instance varchar)",
                "create table grants (job varchar, instance varchar, before bigint, after bigint)",
                "create table reports (instance varchar, at bigint)",
                "create table ids (id bigint primary key)",
                "create table duplicates (text varchar)",
                "create table held (worker int, token bigint, instance varchar, at bigint)")) {
            jdbc.execute(sql);
        }
    }

    private DataSource dataSource() {
        JdbcDataSource source = new JdbcDataSource();
        source.setURL(databaseUrl);
        source.setUser("sa");
        source.setPassword("");
        return source;
    }

    /** The settings of an instance of this name. */
    List<String> settings(String instance, String... more) {
        List<String> settings = new ArrayList<>(List.of(
                "--spring.application.name=shop",
                "--spring.main.banner-mode=off",
                "--logging.level.root=WARN",
                "--shop.instance=" + instance,
                "--shop.report=-",
                "--tenure.url=" + served.url,
                "--tenure.worker-id.pool=worker-ids",
                "--tenure.worker-id.slots=4",
                "--spring.datasource.url=" + databaseUrl,
                "--spring.datasource.username=sa",
                "--spring.data.redis.port=" + redis.port));
        for (String setting : more) {
            // Spring joins what is said twice.
            settings.removeIf(said -> said.startsWith("--" + setting.substring(0, setting.indexOf('=') + 1)));
            settings.add("--" + setting);
        }
        return settings;
    }

    /** An instance in this JVM. */
    ConfigurableApplicationContext start(String instance, String... more) {
        return new SpringApplicationBuilder(ShopApplication.class)
                .registerShutdownHook(false)
                .run(settings(instance, more).toArray(String[]::new));
    }

    /** Waits for a condition, for as long as a busy machine may take. */
    static void until(String what, BooleanSupplier condition) throws InterruptedException {
        long until = System.nanoTime() + 60_000_000_000L;
        while (!condition.getAsBoolean()) {
            if (System.nanoTime() > until) {
                throw new AssertionError("it does not come true: " + what);
            }
            Thread.sleep(5);
        }
    }

    @Override
    public void close() throws InterruptedException, SQLException {
        served.close();
        redis.close();
        database.stop();
    }
}
