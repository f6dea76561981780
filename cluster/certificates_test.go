package cluster

import (
	"context"
	"crypto/tls"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"knarr/internal/run"
)

// A server that runs for years without a restart has valid certificates all the
// while, and so do the kubeconfigs that it wrote.
func TestCertificatesStayValid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := certified(t)
		s.opts.WriteKubeconfig, s.opts.mode = s.opts.DataDir+"/written", 0o600
		c, err := s.certificates()
		if err != nil {
			t.Fatal(err)
		}
		s.renewal = c.renew
		ctx, cancel := context.WithCancel(t.Context())
		var group run.Group
		group.Go("renew", func() {
			if err := s.renewCertificates(ctx); err != nil {
				t.Error(err)
			}
		})
		valid := func(name string, cert *tls.Certificate, err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
			if left := time.Until(cert.Leaf.NotAfter); left < leafLife/2 || left > leafLife {
				t.Fatalf("%v: the certificate of %s ends in %v", time.Now(), name, left)
			}
		}
		ofFiles := func(name string) {
			t.Helper()
			cert, err := tls.LoadX509KeyPair(s.layout.tls(name+".crt"), s.layout.tls(name+".key"))
			valid(name, &cert, err)
		}
		for range 36 {
			time.Sleep(leafLife / 12)
			synctest.Wait()
			for name, f := range map[string]interface {
				Certificate() (*tls.Certificate, error)
			}{"the API server": c.serving, "its own towards kubelets": c.kubeletClient, "metrics-server": c.metrics, "front proxy": c.frontProxy} {
				cert, err := f.Certificate()
				valid(name, cert, err)
			}
			ofFiles("kubelet")
			ofFiles(adminName)
		}
		for _, file := range []string{s.layout.kubeconfig(), s.opts.WriteKubeconfig} {
			config, err := clientcmd.LoadFromFile(file)
			if err != nil {
				t.Fatal(err)
			}
			now, err := os.ReadFile(s.layout.tls(adminName + ".crt"))
			if err != nil || string(config.AuthInfos["default"].ClientCertificateData) != string(now) {
				t.Errorf("%s has another certificate than the administrator's, %v", file, err)
			}
		}
		cancel()
		group.Wait()
	})
}
