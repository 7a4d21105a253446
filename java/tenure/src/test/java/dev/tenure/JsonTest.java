package dev.tenure;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

final class JsonTest {
    private static Object read(String text) throws Json.Malformed {
        return Json.read(text.getBytes(StandardCharsets.UTF_8));
    }

    @Test
    void whatIsWrittenIsReadAgain() throws Exception {
        Map<String, Object> value = Api.body("a\u0001\"\\", List.of(1L, true, "ä😀\n"), "b", Map.of(), "c", Long.MAX_VALUE);
        assertEquals(value, Json.read(Json.write(value)));
        assertEquals("A\t/", read("\"\\u0041\\t\\/\""));
        assertEquals(-1.5, ((Number) read(" -15e-1 ")).doubleValue());
    }

    @ParameterizedTest
    @ValueSource(
            strings = {
                "", "{", "{\"a\":1", "{\"a\":1}x", "{\"a\":1,\"a\":2}", "[1,]", "{a:1}", "01", "1.", "+1", "t", "\"\\x\"", "\"a", "\"\u0001\"", "nul",
                "[1 2]", "{\"a\" 1}", "\"\\u12g4\"", "NaN", "'a'"
            })
    void whatIsNotCertainIsRefused(String text) {
        assertThrows(Json.Malformed.class, () -> read(text));
    }

    @Test
    void bytesThatAreNoTextAndDeepTextsAreRefused() {
        assertThrows(Json.Malformed.class, () -> Json.read(new byte[] {'"', (byte) 0xff, '"'}));
        assertThrows(Json.Malformed.class, () -> read("[".repeat(100_000)));
    }
}
