package dns

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"knarr/internal/apitest"
)

// The ConfigMap coredns-custom adds a zone; what is not understood is an Event of
// it, and what cannot be read leaves what was.
func TestConfigMaps(t *testing.T) {
	api, stop := apitest.New(t)
	defer stop()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	corp := serverOnLoopback(t, func(q *dns.Msg, _ net.Addr) []*dns.Msg { return []*dns.Msg{says(q, "192.0.2.1")} })
	maps := api.Client(t).CoreV1().ConfigMaps("kube-system")
	s, err := New(Config{Kube: api.Config(), Listen: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:50057")}, ResolvConf: "/dev/null"})
	if err != nil {
		t.Fatal(err)
	}
	running, end := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- s.Run(running) }()
	<-s.Serving()
	events, err := api.Client(t).CoreV1().Events("kube-system").Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer events.Stop()
	event := func(words ...string) {
		t.Helper()
		for e := range events.ResultChan() {
			if ev, ok := e.Object.(*corev1.Event); ok && e.Type == watch.Added {
				for _, w := range words {
					if !strings.Contains(ev.Reason+" "+ev.Message+" "+ev.InvolvedObject.Name, w) {
						t.Errorf("%s %s, want %q", ev.Reason, ev.Message, w)
					}
				}
				return
			}
		}
		t.Fatal("no event in time")
	}
	until := func(want string) {
		t.Helper()
		q := asks("www.corp.example.")
		for got := ""; got != want; {
			m, err := dns.ExchangeContext(ctx, q, "127.0.0.1:50057")
			if err != nil {
				t.Fatalf("%v; the last answer was %s, want %s", err, got, want)
			}
			got = dns.RcodeToString[m.Rcode] + " " + answerOf(m)
		}
	}
	until("SERVFAIL nothing")
	custom := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "coredns-custom"}, Data: map[string]string{
		"corp.server": "corp.example {\n template ANY A\n forward . " + addressOf(corp) + "\n}\n"}}
	if custom, err = maps.Create(ctx, custom, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	event("InvalidDirective", "/etc/coredns/custom/corp.server:2: template", "coredns-custom")
	until("NOERROR 192.0.2.1")
	custom.Data["corp.server"] = "corp.example {"
	if _, err = maps.Update(ctx, custom, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	event("InvalidCorefile", "corp.server:1", "the last configuration")
	until("NOERROR 192.0.2.1")
	if err := maps.Delete(ctx, "coredns-custom", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	until("SERVFAIL nothing")
	end()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// Metrics have CoreDNS' names, and the node is ready once it answers.
func TestMetricsAndHealth(t *testing.T) {
	s := withCluster(t, configured(t, ".:53 {\nkubernetes cluster.local\n}\n"))
	answerTo(t, s, "web.default.svc.cluster.local.", dns.TypeA)
	get := func(path string) (int, string) {
		w := httptest.NewRecorder()
		s.handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		return w.Code, w.Body.String()
	}
	if code, _ := get("/ready"); code != http.StatusServiceUnavailable {
		t.Errorf("ready before it answers: %d", code)
	}
	close(s.began)
	for _, path := range []string{"/ready", "/health"} {
		if code, text := get(path); code != http.StatusOK || text != "OK" {
			t.Errorf("%s: %d %s", path, code, text)
		}
	}
	_, text := get("/metrics")
	for _, want := range []string{
		`coredns_dns_requests_total{family="1",proto="udp",server="dns://:53",type="A",view="",zone="."} 2`,
		`coredns_dns_responses_total{plugin="kubernetes",rcode="NOERROR",server="dns://:53",view="",zone="."} 2`,
		`coredns_dns_request_duration_seconds_count{server="dns://:53",view="",zone="."} 2`,
		`coredns_dns_response_size_bytes_count{proto="udp",server="dns://:53",view="",zone="."} 2`,
		`coredns_cache_entries{server="dns://:53",type="success",view="",zones="."} 1`,
		"coredns_forward_healthcheck_broken_total 0", "coredns_panics_total", "coredns_build_info{", "coredns_reload_failed_total 0",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s in the metrics", want)
		}
	}
}
