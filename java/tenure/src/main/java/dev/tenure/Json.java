package dev.tenure;

import java.math.BigDecimal;
import java.nio.ByteBuffer;
import java.nio.CharBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * JSON as RFC 8259 has it, and nothing more: no comments, no trailing commas, no field twice, nothing after the end.
 *
 * <p>An answer that is cut off or mixed with another must never be taken for an answer, so whatever is not certain is refused. Values are
 * {@code Map}, {@code List}, {@code String}, {@code Long} (a whole number that fits), {@code BigDecimal}, {@code Boolean} and null.
 */
final class Json {
    /** Deeper than any answer; a bound, so that no text overflows the stack. */
    private static final int DEPTH_MAX = 32;

    /** The text is not JSON. */
    static final class Malformed extends Exception {
        private static final long serialVersionUID = 1;

        Malformed(String text) {
            super(text);
        }
    }

    private final String text;
    private int at;

    private Json(String text) {
        this.text = text;
    }

    /** Reads one value, which the bytes hold as UTF-8. */
    static Object read(byte[] bytes) throws Malformed {
        Json json;
        try {
            json = new Json(StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(bytes)).toString());
        } catch (CharacterCodingException e) {
            throw new Malformed("no UTF-8");
        }
        Object value = json.value(0);
        json.space();
        if (json.at < json.text.length()) {
            throw json.malformed("something after the end");
        }
        return value;
    }

    /** Writes a value of the types that are read, and of {@code Integer}. */
    static byte[] write(Object value) {
        StringBuilder out = new StringBuilder();
        write(value, out);
        try {
            // A lone half of a surrogate pair would become "?", and a name another name.
            ByteBuffer bytes = StandardCharsets.UTF_8.newEncoder().encode(CharBuffer.wrap(out));
            byte[] exact = new byte[bytes.remaining()];
            bytes.get(exact);
            return exact;
        } catch (CharacterCodingException e) {
            throw new TenureException(Kind.INVALID, "a text is no Unicode", "it has one half of a surrogate pair", null, null);
        }
    }

    private static void write(Object value, StringBuilder out) {
        if (value instanceof Map<?, ?> map) {
            String sep = "{";
            for (Map.Entry<?, ?> field : map.entrySet()) {
                out.append(sep);
                quote((String) field.getKey(), out);
                out.append(':');
                write(field.getValue(), out);
                sep = ",";
            }
            out.append(map.isEmpty() ? "{}" : "}");
        } else if (value instanceof List<?> list) {
            String sep = "[";
            for (Object item : list) {
                out.append(sep);
                write(item, out);
                sep = ",";
            }
            out.append(list.isEmpty() ? "[]" : "]");
        } else if (value instanceof String string) {
            quote(string, out);
        } else if (value == null || value instanceof Boolean || value instanceof Long || value instanceof Integer) {
            out.append(value);
        } else {
            throw new IllegalArgumentException("no JSON of " + value.getClass());
        }
    }

    private static void quote(String string, StringBuilder out) {
        out.append('"');
        for (int i = 0; i < string.length(); i++) {
            char c = string.charAt(i);
            if (c == '"' || c == '\\') {
                out.append('\\').append(c);
            } else if (c < ' ') {
                out.append(String.format("\\u%04x", (int) c));
            } else {
                out.append(c);
            }
        }
        out.append('"');
    }

    private Malformed malformed(String why) {
        return new Malformed(why + " at " + at);
    }

    private void space() {
        while (at < text.length() && " \t\r\n".indexOf(text.charAt(at)) >= 0) {
            at++;
        }
    }

    private char next() throws Malformed {
        if (at >= text.length()) {
            throw malformed("it ends too early");
        }
        return text.charAt(at++);
    }

    private boolean found(char c) {
        space();
        if (at < text.length() && text.charAt(at) == c) {
            at++;
            return true;
        }
        return false;
    }

    private void expect(char c) throws Malformed {
        if (!found(c)) {
            throw malformed("no '" + c + "'");
        }
    }

    private Object value(int depth) throws Malformed {
        if (depth > DEPTH_MAX) {
            throw malformed("too deep");
        }
        if (found('{')) {
            return object(depth);
        }
        if (found('[')) {
            return array(depth);
        }
        if (found('"')) {
            return string();
        }
        for (String word : new String[] {"true", "false", "null"}) {
            if (text.startsWith(word, at)) {
                at += word.length();
                return word.equals("null") ? null : Boolean.valueOf(word);
            }
        }
        return number();
    }

    private Map<String, Object> object(int depth) throws Malformed {
        Map<String, Object> map = new LinkedHashMap<>();
        if (found('}')) {
            return map;
        }
        do {
            expect('"');
            String key = string();
            expect(':');
            Object value = value(depth + 1);
            if (map.containsKey(key)) {
                throw malformed("a field twice");
            }
            map.put(key, value);
        } while (found(','));
        expect('}');
        return map;
    }

    private List<Object> array(int depth) throws Malformed {
        List<Object> list = new ArrayList<>();
        if (found(']')) {
            return list;
        }
        do {
            list.add(value(depth + 1));
        } while (found(','));
        expect(']');
        return list;
    }

    private String string() throws Malformed {
        StringBuilder out = new StringBuilder();
        for (char c = next(); c != '"'; c = next()) {
            if (c < ' ') {
                throw malformed("a control character");
            }
            out.append(c == '\\' ? escaped() : c);
        }
        return out.toString();
    }

    private char escaped() throws Malformed {
        char c = next();
        int plain = "\"\\/bfnrt".indexOf(c);
        if (plain >= 0) {
            return "\"\\/\b\f\n\r\t".charAt(plain);
        }
        if (c != 'u') {
            throw malformed("an unknown escape");
        }
        int code = 0;
        for (int i = 0; i < 4; i++) {
            int digit = Character.digit(next(), 16);
            if (digit < 0) {
                throw malformed("no hexadecimal digit");
            }
            code = code * 16 + digit;
        }
        return (char) code;
    }

    private static final java.util.regex.Pattern NUMBER =
            java.util.regex.Pattern.compile("-?(0|[1-9][0-9]*)(\\.[0-9]+)?([eE][-+]?[0-9]{1,3})?");

    private Object number() throws Malformed {
        java.util.regex.Matcher matcher = NUMBER.matcher(text).region(at, text.length());
        if (!matcher.lookingAt()) {
            throw malformed("no value");
        }
        at = matcher.end();
        boolean isWhole = matcher.group(2) == null && matcher.group(3) == null;
        try {
            return isWhole ? (Object) Long.valueOf(matcher.group()) : new BigDecimal(matcher.group());
        } catch (NumberFormatException e) {
            return new BigDecimal(matcher.group());
        }
    }
}
