package mode

import (
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// metricsAt is where the proxy under test says what it has done.
const metricsAt = "127.0.0.1:10249"

// measured wants the proxy to name its mode, and what it counts to be what it did.
func (r *rig) measured() {
	r.t.Helper()
	if got := page(r.t, "/proxyMode"); got != r.mode {
		r.t.Errorf("/proxyMode says %q", got)
	}
	lines := map[string]float64{}
	for line := range strings.Lines(page(r.t, "/metrics")) {
		var value float64
		if name, text, ok := strings.Cut(strings.TrimSpace(line), " "); ok && name != "#" {
			if _, err := fmt.Sscan(text, &value); err == nil {
				lines[name] = value
			}
		}
	}
	for _, family := range []string{"IPv4", "IPv6"} {
		of := `{ip_family="` + family + `"}`
		if n := lines["kubeproxy_sync_proxy_rules_duration_seconds_count"+of]; n == 0 {
			r.t.Errorf("no rules of %s were written", family)
		} else if whole, some := lines["kubeproxy_sync_full_proxy_rules_duration_seconds_count"+of], lines["kubeproxy_sync_partial_proxy_rules_duration_seconds_count"+of]; whole == 0 || some == 0 || whole+some != n {
			r.t.Errorf("%s: rules were written %v times, all %v times and some %v times", family, n, whole, some)
		}
		if at := lines["kubeproxy_sync_proxy_rules_last_timestamp_seconds"+of]; time.Since(time.Unix(int64(at), 0)) > time.Hour {
			r.t.Errorf("rules of %s were written at %v", family, at)
		}
	}
	if r.mode != "iptables" {
		return
	}
	for _, table := range []string{"nat", "filter"} {
		out, err := exec.Command("iptables-save", "-t", table).Output()
		if err != nil {
			r.t.Fatal(err)
		}
		of := `{ip_family="IPv4",table="` + table + `"}`
		have, total, last := strings.Count(string(out), "\n-A KNARR-TEST-"), lines["kubeproxy_sync_proxy_rules_iptables_total"+of], lines["kubeproxy_sync_proxy_rules_iptables_last"+of]
		if have == 0 || int(total) != have || last == 0 || last > total {
			r.t.Errorf("table %s has %d rules; the metrics say %v, of which %v were written last", table, have, total, last)
		}
	}
}

func page(t *testing.T, path string) string {
	t.Helper()
	resp, err := http.Get("http://" + metricsAt + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v", path, resp.Status, err)
	}
	return string(b)
}
