package proxyprotocol

import (
	"bufio"
	"io"
	"net/netip"
	"strings"
	"testing"
)

func TestRead(t *testing.T) {
	v2 := func(rest string) string { return signature + rest }
	for header, want := range map[string]string{
		"PROXY TCP4 1.2.3.4 5.6.7.8 1000 80\r\n":                                  "1.2.3.4:1000",
		"PROXY TCP6 2001:db8::1 2001:db8::2 1000 80\r\n":                          "[2001:db8::1]:1000",
		"PROXY UNKNOWN\r\n":                                                       "none",
		"PROXY UNKNOWN 1.2.3.4 5.6.7.8 1 2\r\n":                                   "none",
		"PROXY TCP4 1.2.3.4 5.6.7.8 1000\r\n":                                     "refused",
		"PROXY TCP4 1.2.3.4 5.6.7.8 1000 80\n":                                    "refused",
		"PROXY TCP4 2001:db8::1 2001:db8::2 1000 80\r\n":                          "refused",
		"PROXY TCP6 1.2.3.4 5.6.7.8 1000 80\r\n":                                  "refused",
		"PROXY TCP4 1.2.3.4 5.6.7.8 70000 80\r\n":                                 "refused",
		"PROXY TCP4 1.2.3.4  5.6.7.8 1000 80\r\n":                                 "refused",
		"PROXY TCP4 " + strings.Repeat("1", 200):                                  "refused",
		"GET / HTTP/1.1\r\nHost: h\r\n\r\n":                                       "refused",
		v2("\x21\x11\x00\x0c\x01\x02\x03\x04\x05\x06\x07\x08\x03\xe8\x00\x50"):    "1.2.3.4:1000",
		v2("\x21\x11\x00\x0f\x01\x02\x03\x04\x05\x06\x07\x08\x03\xe8\x00\x50abc"): "1.2.3.4:1000",
		v2("\x20\x00\x00\x00"):                                                    "none",
		v2("\x21\x31\x00\x00"):                                                    "none",
		v2("\x21\x11\x00\x04\x01\x02\x03\x04"):                                    "refused",
		v2("\x11\x11\x00\x00"):                                                    "refused",
		v2("\x22\x11\x00\x00"):                                                    "refused",
		v2("\x21\x11\xff\xff"):                                                    "refused",
	} {
		r := bufio.NewReaderSize(strings.NewReader(header+"rest of it, which stays"), MaxHeader)
		source, err := Read(r)
		got := source.String()
		switch {
		case err != nil:
			got = "refused"
		case !source.IsValid():
			got = "none"
		}
		if got != want {
			t.Errorf("%q: %s, want %s", header, got, want)
			continue
		}
		if rest, _ := io.ReadAll(r); err == nil && string(rest) != "rest of it, which stays" {
			t.Errorf("%q: left %q", header, rest)
		}
	}
}

// TestAppend: what is written is read again.
func TestAppend(t *testing.T) {
	for _, version := range []int{1, 2} {
		for _, c := range [][2]string{{"1.2.3.4:1000", "5.6.7.8:80"}, {"[2001:db8::1]:1000", "[2001:db8::2]:80"}, {"[::ffff:1.2.3.4]:1000", "5.6.7.8:80"}} {
			from, to := netip.MustParseAddrPort(c[0]), netip.MustParseAddrPort(c[1])
			got, err := Read(bufio.NewReader(strings.NewReader(string(Append(nil, version, from, to)))))
			if err != nil || got != netip.AddrPortFrom(from.Addr().Unmap(), from.Port()) {
				t.Errorf("version %d of %v: %v %v", version, from, got, err)
			}
		}
		mixed := Append(nil, version, netip.MustParseAddrPort("1.2.3.4:1000"), netip.MustParseAddrPort("[2001:db8::2]:80"))
		if got, err := Read(bufio.NewReader(strings.NewReader(string(mixed)))); err != nil || got.String() != "1.2.3.4:1000" {
			t.Errorf("version %d with two families: %v %v", version, got, err)
		}
		none := Append(nil, version, netip.AddrPort{}, netip.MustParseAddrPort("5.6.7.8:80"))
		if got, err := Read(bufio.NewReader(strings.NewReader(string(none)))); err != nil || got.IsValid() {
			t.Errorf("version %d of nobody: %v %v", version, got, err)
		}
	}
}

// FuzzRead: reading ends within the bounds, and a header that names an address is read
// alike when it is written again.
func FuzzRead(f *testing.F) {
	for _, s := range []string{"PROXY TCP4 1.2.3.4 5.6.7.8 1000 80\r\n", signature + "\x21\x11\x00\x0c\x01\x02\x03\x04\x05\x06\x07\x08\x03\xe8\x00\x50", "PROXY UNKNOWN\r\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		source, err := Read(bufio.NewReaderSize(strings.NewReader(string(b)), MaxHeader))
		if err != nil || !source.IsValid() {
			return
		}
		for _, version := range []int{1, 2} {
			again, err := Read(bufio.NewReader(strings.NewReader(string(Append(nil, version, source, source)))))
			if err != nil || again != source {
				t.Errorf("%q: %v, then %v %v", b, source, again, err)
			}
		}
	})
}
