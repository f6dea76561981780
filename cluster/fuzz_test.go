package cluster

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"knarr/internal/apitest"
)

// What a node sends to join is refused, or gets certificates that say no more
// than who it is; nothing passes for the server, and nobody joins without the
// secret.
func FuzzJoin(f *testing.F) {
	log := slog.Default()
	slog.SetDefault(slog.New(slog.DiscardHandler))
	f.Cleanup(func() { slog.SetDefault(log) })
	api, stop := apitest.New(f)
	f.Cleanup(stop)
	ca, err := openAuthority(layout{f.TempDir()}, "ca")
	if err != nil {
		f.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		f.Fatal(err)
	}
	own := []string{"boss", "192.0.2.1"}
	j := &joins{ca: ca, token: joinToken{secret: "s3cret"}, own: own, client: api.Client(f), slots: make(chan struct{}, 1)}
	handler := j.paths()[joinPath]

	for _, name := range []string{"n", "boss", "N!", "", strings.Repeat("a", 300)} {
		f.Add("s3cret", name, []byte(netip.MustParseAddr("192.0.2.7").AsSlice()), []byte(nil))
		f.Add("guess", name, []byte{192, 0, 2, 1}, csr[:40])
	}
	f.Add("s3cret", "six", netip.MustParseAddr("::ffff:192.0.2.1").AsSlice(), []byte(nil))
	f.Add("", "", []byte(nil), []byte(`{"secret":"s3cret","nodeName":{},"nodeIPs":"x","csr":"%"}`))
	f.Fuzz(func(t *testing.T, given, name string, address, raw []byte) {
		req := joinRequest{Secret: given, NodeName: name, CSR: csr}
		if len(raw) > 0 {
			req.CSR = raw
		}
		if ip, ok := netip.AddrFromSlice(address); ok {
			req.NodeIPs = []netip.Addr{ip}
		}
		body, err := json.Marshal(req)
		if err != nil {
			t.Fatal(err)
		}
		for _, sent := range [][]byte{body, raw} {
			w := httptest.NewRecorder()
			j.failed = failedAttempts{}
			handler.ServeHTTP(w, httptest.NewRequest(http.MethodPost, joinPath, bytes.NewReader(sent)))
			if w.Code == http.StatusOK {
				checkReply(t, w.Body.Bytes(), own)
			} else if !slices.Contains([]int{http.StatusBadRequest, http.StatusUnauthorized, http.StatusConflict}, w.Code) {
				t.Fatalf("%q: %d %s", sent, w.Code, w.Body)
			}
			if w.Code == http.StatusOK && !bytes.Contains(sent, []byte("s3cret")) {
				t.Fatalf("%q was let in", sent)
			}
		}
	})
}

// checkReply: the certificates are of a node.
func checkReply(t *testing.T, body []byte, own []string) {
	t.Helper()
	var reply joinReply
	if err := json.Unmarshal(body, &reply); err != nil || len(reply.Certificates) == 0 {
		t.Fatalf("%v, %s", err, body)
	}
	for part, der := range reply.Certificates {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		if c.IsCA || slices.Contains(c.Subject.Organization, "system:masters") {
			t.Fatalf("%s is of %s", part, c.Subject)
		}
		for _, host := range own {
			if c.VerifyHostname(host) == nil {
				t.Fatalf("%s passes for %s", part, host)
			}
		}
	}
}

// A kubeconfig in cluster-info that anybody changed stays as it is, or names this
// cluster's authority; the next start finds nothing to change in it.
func FuzzClusterInfo(f *testing.F) {
	const here = "https://192.0.2.1:6443"
	ca, old := testAuthority(f), testAuthority(f)
	c := &clusterInfo{server: here, ca: ca}
	for _, text := range []string{"", "5b7c", "clusters: []\n", infoText(f, here, ca.pem), infoText(f, here, old.pem), infoText(f, "https://k8s.example.com", old.pem), infoText(f, here, otherPEM(f)), infoText(f, "https://192.0.2.7:6443", otherPEM(f))} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, have string) {
		text, err := c.kubeconfig(have, "https://192.0.2.7:6443")
		if err != nil {
			t.Fatal(err)
		}
		if text != have && !strings.Contains(text, base64.StdEncoding.EncodeToString(ca.pem)) && !strings.Contains(text, here) {
			t.Fatalf("changed, and without the authority or the address:\n%s", text)
		}
		if again, err := c.kubeconfig(text, "https://192.0.2.7:6443"); err != nil || again != text {
			t.Fatalf("changed twice: %v\n%s\nthen\n%s", err, text, again)
		}
	})
}
