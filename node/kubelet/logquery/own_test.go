package logquery

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestUnitOf(t *testing.T) {
	for groups, want := range map[string]string{
		"":                                    "",
		"0::/":                                "",
		"0::/system.slice/knarr.service\n":    "knarr.service",
		"0::/system.slice/knarr.service/main": "knarr.service",
		"0::/user.slice/user-1.slice/user@1.service/app.slice/k.service\n":         "k.service",
		"0::/user.slice/user-1.slice/session-2.scope\n":                            "",
		"9:memory:/x.service\n1:name=systemd:/system.slice/knarr.service\n0::/\n":  "knarr.service",
		"9:memory:/x.service\n8:cpu,cpuacct:/y.service\n":                          "",
		"0::/system.slice/a\\x2db.service\n":                                       "",
		"0::/docker/0123\n":                                                        "",
		"0::/system.slice/" + strings.Repeat("a", maxServiceLength) + ".service\n": "",
	} {
		if got := unitOf(groups); got != want {
			t.Errorf("%q: %q, want %q", groups, got, want)
		}
	}
}

// TestKubeletsUnit: the kubelet is asked for by its usual name, whatever the
// unit is called that it runs in.
func TestKubeletsUnit(t *testing.T) {
	const usual = "--utc\n--no-pager\n--output=short-precise\n"
	for own, want := range map[string]string{
		"":             "\nlog not found for kubelet\n",
		"init.scope":   usual + "--unit=init.scope\n",
		"none.service": "\nlog not found for kubelet\n",
	} {
		h := answers(logs(t), "testdata/journalctl-without-kubelet")
		h.own = own
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/?query=kubelet", nil))
		if got := w.Body.String(); got != want {
			t.Errorf("%q: %q, want %q", own, got, want)
		}
	}
	h := answers(logs(t), "testdata/journalctl")
	h.own = "init.scope"
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/?query=kubelet", nil))
	if got := w.Body.String(); got != usual+"--unit=kubelet\n" {
		t.Errorf("a unit of that name comes first: %q", got)
	}
}
