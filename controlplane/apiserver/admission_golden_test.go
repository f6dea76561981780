package apiserver_test

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"knarr/controlplane/apiserver"
	"knarr/controlplane/apiserver/admission/plugin"
)

const goldenDir = "testdata/admission/"

// chosen are the plugins that the recorded server ran besides the usual ones.
var chosen = []string{"AlwaysPullImages", "DenyServiceExternalIPs", "EventRateLimit", "ExtendedResourceToleration",
	"LimitPodHardAntiAffinityTopology", "NamespaceExists", "OwnerReferencesPermissionEnforcement", "PodNodeSelector", "PodTolerationRestriction"}

// A demand is one request of a story that admission has to do with.
type demand struct {
	Name string          `json:"name"`
	Do   string          `json:"do"`
	As   string          `json:"as,omitempty"`
	Body json.RawMessage `json:"body,omitempty"`
}

// An outcome is what became of it.
type outcome struct {
	Name     string   `json:"name"`
	Code     int      `json:"code"`
	Warnings []string `json:"warnings,omitempty"`
	Body     any      `json:"body,omitempty"`
}

// TestAdmissionAsUpstream tells one story to the server and compares what it
// answers with what upstream's kube-apiserver v1.36.3 did, with the same
// plugins and the same configuration. KNARR_ADMISSION_ORACLE=https://… asks
// that server, one with an empty store, and records.
func TestAdmissionAsUpstream(t *testing.T) {
	story := readLines[demand](t, goldenDir+"requests.jsonl")
	if url := os.Getenv("KNARR_ADMISSION_ORACLE"); url != "" {
		record(t, url, story)
		return
	}
	want := readLines[outcome](t, goldenDir+"answers.jsonl")
	settings, err := plugin.Load(goldenDir+"config.yaml", chosen, nil)
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) { // no bucket fills up again while the story is told
		w, stop := newBubble(t, func(c *apiserver.Config) { c.EnableAdmission, c.Admission = chosen, settings })
		defer stop()
		cfg := w.Config()
		tr := &http.Transport{DialContext: cfg.Dial}
		defer tr.CloseIdleConnections()
		for i, d := range story {
			got := ask(t, &http.Client{Transport: tr}, cfg.Host, "", d)
			w.must(w.Cache().Sync(w.ctx))
			if !reflect.DeepEqual(got, want[i]) {
				g, _ := json.Marshal(got)
				u, _ := json.Marshal(want[i])
				t.Errorf("%s:\nours       %s\nupstream's %s", d.Name, g, u)
			}
		}
	})
}

func readLines[T any](t *testing.T, file string) (all []T) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var one T
		if err := json.Unmarshal(lines.Bytes(), &one); err != nil {
			t.Fatal(err)
		}
		all = append(all, one)
	}
	return all
}

func record(t *testing.T, url string, story []demand) {
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	var out bytes.Buffer
	for _, d := range story {
		line, err := json.Marshal(ask(t, client, url, os.Getenv("KNARR_ORACLE_TOKEN"), d))
		if err != nil {
			t.Fatal(err)
		}
		out.Write(append(line, '\n'))
		<-time.After(150 * time.Millisecond) // its informers are behind
	}
	if err := os.WriteFile(goldenDir+"answers.jsonl", out.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
}

func ask(t *testing.T, client *http.Client, url, token string, d demand) outcome {
	t.Helper()
	method, path, _ := strings.Cut(d.Do, " ")
	r, err := http.NewRequestWithContext(t.Context(), method, url+path, bytes.NewReader(d.Body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", map[bool]string{true: "application/merge-patch+json", false: "application/json"}[method == http.MethodPatch])
	if strings.HasSuffix(path, "/resize") {
		r.Header.Set("Content-Type", "application/strategic-merge-patch+json")
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	if d.As != "" {
		r.Header.Set("Impersonate-User", d.As)
	}
	resp, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	a := outcome{Name: d.Name, Code: resp.StatusCode, Warnings: resp.Header.Values("Warning")}
	if err := json.Unmarshal(data, &a.Body); err != nil {
		a.Body = string(data)
	}
	a.Body = plain(a.Body)
	return a
}

// passing are fields that are different each time.
var passing = map[string]bool{"uid": true, "resourceVersion": true, "creationTimestamp": true, "managedFields": true, "deletionTimestamp": true,
	"clusterIP": true, "clusterIPs": true, "nodePort": true, "lastTransitionTime": true, "lastUpdateTime": true, "lastPhaseTransitionTime": true}

// made are the names that are given out.
var made = regexp.MustCompile(`\bg-[0-9a-z]{5}\b`)

// plain leaves out what is different each time.
func plain(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for key := range v {
			if _, leaf := v[key].(map[string]any); passing[key] && !leaf {
				delete(v, key)
				continue
			}
			v[key] = plain(v[key])
		}
	case []any:
		for i := range v {
			v[i] = plain(v[i])
		}
	case string:
		return made.ReplaceAllString(v, "g-?????")
	}
	return v
}
