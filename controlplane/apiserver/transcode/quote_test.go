package transcode

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// Every byte, everywhere in a word, is quoted as encoding/json does.
func TestQuote(t *testing.T) {
	for size := range 20 {
		for at := range size {
			for c := range 256 {
				s := bytes.Repeat([]byte("x"), size)
				s[at] = byte(c)
				same(t, s)
			}
		}
	}
	for _, s := range []string{"", "é", "\u2028\u2029\u2027", "a\xe2\x80", "\xed\xa0\x80 half a pair", "🙂 and more than a word", "line\r\n\ttab", "\x00\x1f\x7f\b\f", `{"a":"<b> & \"c\""}`, "\ufffd is itself"} {
		same(t, []byte(s))
	}
}

func same(t *testing.T, s []byte) {
	t.Helper()
	want, err := json.Marshal(string(s))
	if err != nil {
		t.Fatal(err)
	}
	if got := quote([]byte("before"), s); string(got) != "before"+string(want) {
		t.Fatalf("%q\n got %s\nwant before%s", s, got, want)
	}
}

func FuzzQuote(f *testing.F) {
	f.Add([]byte("plain and <not> \"so\" \\ \u2028 \xff"))
	f.Fuzz(func(t *testing.T, s []byte) { same(t, s) })
}

func BenchmarkQuote(b *testing.B) {
	for _, s := range []struct{ name, text string }{
		{"name", "web-5d4b9c6f5d-abcde"},
		{"word", "default"},
		{"text", strings.Repeat("a line of a configuration, of no odd signs. ", 100)},
		{"lines", strings.Repeat("key: value of a file\n", 200)},
		{"applied", strings.Repeat(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web"}}`, 20)},
		{"words of others", strings.Repeat("größer als früher ", 50)},
	} {
		b.Run(fmt.Sprintf("%s=%d", s.name, len(s.text)), func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(s.text)))
			text, buf := []byte(s.text), []byte(nil)
			for b.Loop() {
				buf = quote(buf[:0], text)
			}
		})
	}
}
