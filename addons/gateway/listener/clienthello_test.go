package listener

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"net"
	"testing"
)

// clientHello is what crypto/tls sends first.
func clientHello(t testing.TB, name string) []byte {
	server, client := net.Pipe()
	defer server.Close()
	go func() {
		defer client.Close()
		_ = tls.Client(client, &tls.Config{ServerName: name, InsecureSkipVerify: true}).Handshake()
	}()
	r := bufio.NewReaderSize(server, maxClientHello)
	head, err := r.Peek(5)
	if err != nil {
		t.Fatal(err)
	}
	all, err := r.Peek(5 + int(binary.BigEndian.Uint16(head[3:])))
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Clone(all)
}

func peek(b []byte) (string, error) {
	return peekServerName(bufio.NewReaderSize(bytes.NewReader(b), maxClientHello))
}

func TestServerName(t *testing.T) {
	hello := clientHello(t, "a.example")
	if name, err := peek(hello); name != "a.example" || err != nil {
		t.Errorf("%q %v", name, err)
	}
	if name, err := peek(clientHello(t, "")); name != "" || err != nil {
		t.Errorf("without a name: %q %v", name, err)
	}
	// One message may come in several records.
	var split []byte
	for rest := hello[5:]; len(rest) > 0; {
		n := min(len(rest), 100)
		split = append(split, 22, 3, 1, 0, byte(n))
		split = append(split, rest[:n]...)
		rest = rest[n:]
	}
	if name, err := peek(split); name != "a.example" || err != nil {
		t.Errorf("in parts: %q %v", name, err)
	}
	for what, b := range map[string][]byte{
		"nothing": nil, "half": hello[:len(hello)/2], "HTTP": []byte("GET / HTTP/1.1\r\nHost: h\r\n\r\n"),
		"an alert": {21, 3, 1, 0, 2, 1, 0}, "another message": append([]byte{22, 3, 1, 0, 4, 2, 0, 0, 0}, make([]byte, 40)...),
		"a huge one":    append([]byte{22, 3, 1, 0, 4, 1, 255, 255, 255}, make([]byte, maxClientHello)...),
		"empty records": bytes.Repeat([]byte{22, 3, 1, 0, 0}, 100),
	} {
		if name, err := peek(b); err == nil {
			t.Errorf("%s: %q", what, name)
		}
	}
}

// A textConn is a connection whose client sent some bytes and no more.
type textConn struct {
	net.Conn
	in *bytes.Reader
}

func (c *textConn) Read(b []byte) (int, error)  { return c.in.Read(b) }
func (c *textConn) Write(b []byte) (int, error) { return len(b), nil }
func (c *textConn) Close() error                { return nil }

// FuzzServerName: a connection is led by the name that the server behind it reads too.
func FuzzServerName(f *testing.F) {
	f.Add(clientHello(f, "a.example"))
	f.Add(clientHello(f, ""))
	f.Fuzz(func(t *testing.T, b []byte) {
		name, err := peek(b)
		if err != nil {
			return
		}
		_ = tls.Server(&textConn{in: bytes.NewReader(b)}, &tls.Config{GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			if hello.ServerName != name {
				t.Errorf("%x: %q, crypto/tls reads %q", b, name, hello.ServerName)
			}
			return nil, errClientHello
		}}).Handshake()
	})
}
