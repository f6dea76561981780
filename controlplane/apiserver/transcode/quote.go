package transcode

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf8"
)

// plain are the bytes that stand for themselves in a JSON string.
var plain = func() (t [256]bool) {
	for c := ' '; c <= 0x7f; c++ {
		t[c] = c != '"' && c != '\\' && c != '<' && c != '>' && c != '&'
	}
	return t
}()

const (
	ones = 0x0101010101010101
	high = 0x8080808080808080
)

// odd has the high bit of the first of eight bytes that is not plain, and maybe
// of later ones; 0 when all are. A subtraction sets the bit where a byte is less
// than what is taken from it, and by its borrow only in bytes after such a one.
func odd(w uint64) uint64 {
	control := w - ' '*ones
	quotes := (w | 4*ones) ^ '&'*ones // 4 is all that '"' and '&' differ in
	angles := (w | 2*ones) ^ '>'*ones // 2 is all that '<' and '>' differ in
	escape := w ^ '\\'*ones
	return (w | control | (quotes - ones) | (angles - ones) | (escape - ones)) & high
}

// run is how many bytes s starts with that are plain.
func run(s []byte) int {
	rest := s
	for len(rest) >= 8 {
		if o := odd(binary.LittleEndian.Uint64(rest)); o != 0 {
			return len(s) - len(rest) + bits.TrailingZeros64(o)/8
		}
		rest = rest[8:]
	}
	for i, c := range rest {
		if !plain[c] {
			return len(s) - len(rest) + i
		}
	}
	return len(s)
}

const hex = "0123456789abcdef"

// short is how long a string is that is looked through sooner than run is called.
const short = 24

// quote appends a string as encoding/json writes it.
func quote(b, s []byte) []byte {
	n := 0
	if len(s) < short {
		for n < len(s) && plain[s[n]] {
			n++
		}
	} else {
		n = run(s)
	}
	b = append(b, '"')
	if n < len(s) {
		b = append(b, s[:n]...)
		return escape(b, s[n:])
	}
	b = append(b, s...)
	return append(b, '"')
}

// escape is the rest of quote for what starts with a byte that is not plain.
func escape(b, s []byte) []byte {
	for {
		n := 1
		switch c := s[0]; c {
		case '"', '\\':
			b = append(b, '\\', c)
		case '\n':
			b = append(b, '\\', 'n')
		case '\t':
			b = append(b, '\\', 't')
		case '\r':
			b = append(b, '\\', 'r')
		case '\b':
			b = append(b, '\\', 'b')
		case '\f':
			b = append(b, '\\', 'f')
		default:
			if c < utf8.RuneSelf {
				b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
				break
			}
			var r rune
			switch r, n = utf8.DecodeRune(s); {
			case r == utf8.RuneError && n == 1:
				b = append(b, `\ufffd`...)
			case r == '\u2028' || r == '\u2029': // which end a line in JavaScript
				b = append(b, '\\', 'u', '2', '0', '2', hex[r&15])
			default:
				b = append(b, s[:n]...)
			}
		}
		s = s[n:]
		n = run(s)
		b = append(b, s[:n]...)
		if n == len(s) {
			return append(b, '"')
		}
		s = s[n:]
	}
}
