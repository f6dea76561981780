package kubelet

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestClientCAFile: who is let in is what the file says now, and what it said before while it
// says nothing.
func TestClientCAFile(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	file := filepath.Join(t.TempDir(), "ca.crt")
	write := func(names ...string) *x509.CertPool {
		t.Helper()
		pool, text := x509.NewCertPool(), []byte(nil)
		for _, name := range names {
			c, err := selfSigned(name, nil)
			if err != nil {
				t.Fatal(err)
			}
			text = append(text, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate[0]})...)
		}
		pool.AppendCertsFromPEM(text)
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		return pool
	}
	k := &Kubelet{cfg: Config{ClientCAFile: file}}
	if err := k.readClientCA(); err == nil {
		t.Error("a file that is not there was read")
	}
	none := &tls.Config{}
	if k.askClients(none); none.ClientAuth != tls.NoClientCert || none.GetConfigForClient != nil {
		t.Error("clients are asked for certificates that nobody believes")
	}
	first := write("one")
	if err := k.readClientCA(); err != nil {
		t.Fatal(err)
	}
	c := &tls.Config{}
	k.askClients(c)
	if c.ClientAuth != tls.RequestClientCert || !c.ClientCAs.Equal(first) {
		t.Errorf("clients are asked for %v", c.ClientAuth)
	}
	done := make(chan struct{})
	go func() { defer close(done); k.followClientCA(ctx) }()
	becomes := func(pool *x509.CertPool) {
		t.Helper()
		for {
			now, err := c.GetConfigForClient(nil)
			if err != nil {
				t.Fatal(err)
			}
			if now != nil && now.ClientCAs.Equal(pool) && now.ClientAuth == tls.RequestClientCert && k.clientCA.Load().Equal(pool) {
				return
			}
			if !sleep(ctx, 10*time.Millisecond) {
				t.Fatal("the file is not read again")
			}
		}
	}
	both := write("one", "two")
	becomes(both)
	write()
	becomes(both)
	becomes(write("three"))
	cancel()
	<-done
}
