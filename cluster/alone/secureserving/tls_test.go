package secureserving

import (
	"crypto/tls"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"k8s.io/client-go/util/cert"
)

// TestChoose: the certificate is the one for the server's name.
func TestChoose(t *testing.T) {
	dir := t.TempDir()
	files := func(host string) string {
		certPEM, keyPEM, err := cert.GenerateSelfSignedCertKey(host, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		at := filepath.Join(dir, host)
		if err := os.WriteFile(at+".crt", certPEM, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at+".key", keyPEM, 0o600); err != nil {
			t.Fatal(err)
		}
		return at + ".crt," + at + ".key"
	}
	o := defaults(t, "--tls-sni-cert-key="+files("a.example.com"), "--tls-sni-cert-key="+files("b.example.com")+":*.b.org,c.org")
	other := &tls.Certificate{}
	choose, err := o.choose(func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return other, nil })
	if err != nil {
		t.Fatal(err)
	}
	for server, want := range map[string]string{"": "", "a.example.com": "a.example.com", "b.example.com": "", "x.b.org": "b.example.com", "C.org": "b.example.com", "x.y.b.org": ""} {
		c, err := choose(&tls.ClientHelloInfo{ServerName: server})
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if c != other {
			got = c.Leaf.DNSNames[0]
		}
		if got != want {
			t.Errorf("%q gets the certificate of %q, want %q", server, got, want)
		}
	}
	if _, err := defaults(t, "--tls-sni-cert-key=/none,/none").choose(nil); err == nil {
		t.Error("files that are not there are no mistake")
	}
}

// TestSharePort: a second process can listen only where both say so.
func TestSharePort(t *testing.T) {
	o := defaults(t, "--permit-port-sharing")
	first, err := o.listenConfig().Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	second, err := o.listenConfig().Listen(t.Context(), "tcp", first.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	second.Close()
	if l, err := net.Listen("tcp", first.Addr().String()); err == nil {
		l.Close()
		t.Error("a port that is not shared can be had twice")
	}
}

// TestMetrics: what is disabled is not shown, and labels have the values they may.
func TestMetrics(t *testing.T) {
	registry := prometheus.NewRegistry()
	count := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "count", Help: "x"}, []string{"code", "verb"})
	seconds := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "seconds", Help: "x", Buckets: []float64{1, 2}}, []string{"code"})
	gone := prometheus.NewGauge(prometheus.GaugeOpts{Name: "gone", Help: "x"})
	registry.MustRegister(count, seconds, gone)
	for _, code := range []string{"200", "404", "500"} {
		count.WithLabelValues(code, "GET").Inc()
		seconds.WithLabelValues(code).Observe(1.5)
	}
	o := defaults(t, "--disabled-metrics=gone", "--allow-metric-labels=count,code=200", "--allow-metric-labels=seconds,code=500")
	if err := o.Validate(); err != nil {
		t.Fatal(err)
	}
	all, err := o.Metrics.gatherer(registry).Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range all {
		for _, m := range f.Metric {
			key := f.GetName()
			for _, l := range m.Label {
				key += " " + l.GetValue()
			}
			got[key] = m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount()) + last(m).GetCumulativeCountFloat() + float64(last(m).GetCumulativeCount())
		}
	}
	want := map[string]float64{"count 200 GET": 1, "count unexpected GET": 2, "seconds 500": 2, "seconds unexpected": 4}
	if len(got) != len(want) {
		t.Errorf("%v", got)
	}
	for key, n := range want {
		if got[key] != n {
			t.Errorf("%s is %v, want %v", key, got[key], n)
		}
	}
}

// last is the last bucket of a histogram.
func last(m *dto.Metric) *dto.Bucket {
	if b := m.GetHistogram().GetBucket(); len(b) > 0 {
		return b[len(b)-1]
	}
	return nil
}
