package dataplane

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/quic-go/qpack"
	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
	"github.com/quic-go/quic-go/quicvarint"

	"knarr/addons/gateway/route"
)

// http3Client asks the port of UDP that was opened as this one.
func (f *fixture) http3Client(port int, roots *x509.CertPool) *http.Client {
	t := &http3.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, Dial: func(ctx context.Context, _ string, c *tls.Config, q *quic.Config) (*quic.Conn, error) {
		return quic.DialAddrEarly(ctx, f.packets[fmt.Sprintf(":%d", port)].LocalAddr().String(), c, q)
	}}
	f.t.Cleanup(func() { _ = t.Close() })
	return &http.Client{Transport: t}
}

// withHTTP3 serves two hosts, of which one asks for HTTP/3.
func withHTTP3(cert *tls.Certificate, port uint16) *route.Config {
	c := one("https", 443, "a")
	l := &c.Listeners[0]
	l.Protocol, l.Certificates, l.HTTP3Port, l.HTTP3Hosts = route.HTTPS, []*tls.Certificate{cert}, port, []string{"a.example"}
	return c
}

func TestHTTP3(t *testing.T) {
	f := newPlane(t, Options{})
	cert, roots := newCertificate(t, "a.example", "b.example")
	f.apply(withHTTP3(cert, 443))
	f.serve("a", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Alt-Svc", `h3=":1"`)
		fmt.Fprintf(w, "%s %s %s|%s", r.Host, r.RequestURI, r.Header.Get("X-Forwarded-Proto"), body)
	})
	const advertised = `h3=":443"; ma=86400`
	for host, want := range map[string]string{"a.example": advertised, "b.example": `h3=":1"`} {
		for _, h2 := range []bool{false, true} {
			answer, err := f.client(443, roots, h2).Get("https://" + host + "/a")
			if err != nil {
				t.Fatal(err)
			}
			_ = answer.Body.Close()
			if got := answer.Header.Get("Alt-Svc"); got != want {
				t.Errorf("%s of %s: %q, want %q", answer.Proto, host, got, want)
			}
		}
	}
	client := f.http3Client(443, roots)
	answer, err := client.Post("https://a.example/a/b?c", "", strings.NewReader("hello"))
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(answer.Body)
	if want := "a.example /a/b?c https|hello"; string(body) != want || err != nil || answer.Proto != "HTTP/3.0" {
		t.Errorf("%s %q, %v; want %q", answer.Proto, body, err, want)
	}
	if answer, err = client.Get("https://a.example/none"); err != nil || answer.StatusCode != http.StatusNotFound {
		t.Errorf("%v, %v", answer, err)
	}
	if _, err := client.Get("https://b.example/a"); err == nil {
		t.Error("a host that did not ask for it is served by HTTP/3")
	}
	// Once it is not wanted any more, nobody is told of it, and nobody served.
	f.apply(withHTTP3(cert, 0))
	if answer, err = f.client(443, roots, true).Get("https://a.example/a"); err != nil || answer.Header.Get("Alt-Svc") == advertised {
		t.Errorf("%v, %v", answer, err)
	}
	if _, err := f.http3Client(443, roots).Get("https://a.example/a"); err == nil {
		t.Error("HTTP/3 is served that nobody wants")
	}
}

// TestBadHTTP3: what HTTP/3 can carry and HTTP/1.1 cannot does not reach a backend.
func TestBadHTTP3(t *testing.T) {
	f := newPlane(t, Options{})
	cert, roots := newCertificate(t, "a.example")
	f.apply(withHTTP3(cert, 443))
	f.serve("a", func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("the backend is asked %s %q %q %v", r.Method, r.Host, r.RequestURI, r.Header)
	})
	conn, err := quic.DialAddr(t.Context(), f.packets[":443"].LocalAddr().String(), &tls.Config{RootCAs: roots, ServerName: "a.example", NextProtos: []string{"h3"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.CloseWithError(0x100, "") }()
	for name, fields := range map[string][]string{
		"line's end in a value":  {":method", "GET", ":path", "/a", "x", "a\r\nTransfer-Encoding: chunked"},
		"line's end in a name":   {":method", "GET", ":path", "/a", "x: a\r\ny", "b"},
		"line's end in the path": {":method", "GET", ":path", "/a HTTP/1.1\r\nX: y"},
		"space in the path":      {":method", "GET", ":path", "/a HTTP/1.1"},
		"space in the query":     {":method", "GET", ":path", "/a?x HTTP/1.0"},
		"fragment":               {":method", "GET", ":path", "/a?x#y"},
		"space in the method":    {":method", "GET /a HTTP/1.1", ":path", "/a"},
		"coding":                 {":method", "POST", ":path", "/a", "transfer-encoding", "chunked"},
		"wrong length":           {":method", "POST", ":path", "/a", "content-length", "10"},
		"two lengths":            {":method", "POST", ":path", "/a", "content-length", "0", "content-length", "10"},
		"another host":           {":method", "GET", ":path", "/a", "host", "b.example"},
		"port that is none":      {":method", "GET", ":path", "/a", "host", "a.example:80:80"},
		"half of a character":    {":method", "GET", ":path", "/a%z"},
	} {
		st, err := conn.OpenStreamSync(t.Context())
		if err != nil {
			t.Fatalf("before %q: %v", name, err)
		}
		_, _ = st.Write(fieldsOfHTTP3(append([]string{":scheme", "https", ":authority", "a.example"}, fields...)))
		_ = st.Close()
		answer, err := io.ReadAll(st) // the frame of its head: a type, a size, two bytes, the status
		var refused *quic.StreamError
		if !errors.As(err, &refused) && (len(answer) < 5 || statusOfHTTP3(answer) != "400") {
			t.Errorf("%s: %q, %v", name, answer, err)
		}
	}
}

// fieldsOfHTTP3 is a frame of fields.
func fieldsOfHTTP3(fields []string) []byte {
	var block bytes.Buffer
	e := qpack.NewEncoder(&block)
	for i := 0; i < len(fields); i += 2 {
		_ = e.WriteField(qpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	return append(quicvarint.Append([]byte{1}, uint64(block.Len())), block.Bytes()...)
}

// statusOfHTTP3 is that of an answer's first frame.
func statusOfHTTP3(b []byte) string {
	size, n, err := quicvarint.Parse(b[1:])
	if err != nil || uint64(len(b)) < uint64(1+n)+size {
		return ""
	}
	field, err := qpack.NewDecoder().Decode(b[1+n : 1+n+int(size)])()
	if err != nil {
		return err.Error()
	}
	return field.Value
}

// A port of UDP that cannot be had is told, and TLS is served without it.
func TestHTTP3WithoutItsPort(t *testing.T) {
	f := newPlane(t, Options{})
	cert, roots := newCertificate(t, "a.example")
	refused := errors.New("address already in use")
	listen := f.options.ListenPacket
	f.options.ListenPacket = func(string, string) (net.PacketConn, error) { return nil, refused }
	if err := f.Apply(withHTTP3(cert, 443))["https"]; !errors.Is(err, refused) {
		t.Errorf("got %v", err)
	}
	f.serve("a", func(http.ResponseWriter, *http.Request) {})
	answer, err := f.client(443, roots, true).Get("https://a.example/a")
	if err != nil || answer.StatusCode != http.StatusOK || answer.Header.Get("Alt-Svc") != "" {
		t.Errorf("%v, %v", answer, err)
	}
	f.options.ListenPacket = listen
	c := withHTTP3(cert, 443)
	c.Listeners = append(c.Listeners, route.Listener{Name: "dns", Port: 443, Protocol: route.UDP})
	if errs := f.Apply(c); errs["dns"] != nil || errs["https"] == nil || !strings.Contains(errs["https"].Error(), "dns") {
		t.Errorf("got %v", errs)
	}
	f.apply(withHTTP3(cert, 443))
	if answer, err = f.http3Client(443, roots).Get("https://a.example/a"); err != nil || answer.StatusCode != http.StatusOK {
		t.Errorf("%v, %v", answer, err)
	}
}
