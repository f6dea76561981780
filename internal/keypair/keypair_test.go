package keypair

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/client-go/util/cert"
)

// pair writes a new certificate of a name.
func pair(t *testing.T, certFile, keyFile, name string) {
	t.Helper()
	c, k, err := cert.GenerateSelfSignedCertKey(name, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if certFile != "" {
		replace(t, certFile, c)
	}
	if keyFile != "" {
		replace(t, keyFile, k)
	}
}

// replace replaces a file as those who renew do.
func replace(t *testing.T, file string, content []byte) {
	t.Helper()
	if err := os.WriteFile(file+".new", content, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
}

func name(t *testing.T, f *File) string {
	t.Helper()
	c, err := f.Certificate()
	if err != nil {
		t.Fatal(err)
	}
	return c.Leaf.DNSNames[0]
}

// A pair that is renewed is used at once; while only half of it is there, or what is
// there is broken, the one before.
func TestRenewed(t *testing.T) {
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "c"), filepath.Join(dir, "k")
	if _, err := Open(certFile, keyFile); !os.IsNotExist(err) {
		t.Errorf("no files: %v", err)
	}
	pair(t, certFile, keyFile, "one")
	f, err := Open(certFile, keyFile)
	if err != nil {
		t.Fatal(err)
	}
	first, _ := f.Certificate()
	if again, _ := f.Certificate(); again != first {
		t.Error("what has not changed was read again")
	}
	pair(t, certFile, keyFile, "two")
	if n := name(t, f); n != "two" {
		t.Errorf("%s is shown after it was renewed", n)
	}
	pair(t, certFile, "", "three")
	if n := name(t, f); n != "two" {
		t.Errorf("%s is shown without its key", n)
	}
	pair(t, certFile, keyFile, "four")
	if n := name(t, f); n != "four" {
		t.Errorf("%s is shown once both are there", n)
	}
	replace(t, certFile, []byte("rubbish"))
	if n := name(t, f); n != "four" {
		t.Errorf("%s is shown while the file is broken", n)
	}
	if err := os.Remove(certFile); err != nil {
		t.Fatal(err)
	}
	if n := name(t, f); n != "four" {
		t.Errorf("%s is shown while the file is away", n)
	}
	pair(t, certFile, keyFile, "five")
	if n := name(t, f); n != "five" {
		t.Errorf("%s is shown in the end", n)
	}
}

// A connection that was made with a certificate that has a successor is not used again.
func TestTransport(t *testing.T) {
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "c"), filepath.Join(dir, "k")
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.RemoteAddr+" "+r.TLS.PeerCertificates[0].DNSNames[0])
	}))
	srv.TLS = &tls.Config{ClientAuth: tls.RequestClientCert}
	srv.StartTLS()
	defer srv.Close()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw}))
	pair(t, certFile, keyFile, "one")
	f, err := Open(certFile, keyFile)
	if err != nil {
		t.Fatal(err)
	}
	tr := NewTransport(&http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, GetClientCertificate: f.Client}}, f)
	defer tr.CloseIdleConnections()
	ask := func() string {
		t.Helper()
		resp, err := (&http.Client{Transport: tr}).Get(srv.URL)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	one := ask()
	if again := ask(); again != one {
		t.Errorf("%q, then %q: the connection was not used again", one, again)
	}
	pair(t, certFile, keyFile, "two")
	two := ask()
	if two[len(two)-3:] != "two" || ask() != two {
		t.Errorf("%q, then %q after the certificate was renewed", one, two)
	}
}
