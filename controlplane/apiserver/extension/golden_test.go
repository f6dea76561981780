package extension_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"
)

var update = flag.Bool("update", false, "record the answers of the server that KNARR_ORACLE names, with KNARR_ORACLE_TOKEN")

// A request is one line of testdata/requests.json: they are sent in order.
type request struct {
	Method, Path, Body, Type, Accept string
}

// An answer is what came back, without what differs from run to run.
type answer struct {
	Code     int      `json:"code"`
	Body     any      `json:"body"`
	Warnings []string `json:"warnings,omitempty"`
}

// TestGolden holds every answer about custom objects, good and bad, to
// upstream's.
func TestGolden(t *testing.T) {
	var requests []request
	readFile(t, "testdata/requests.json", &requests)
	definition, err := os.ReadFile("testdata/crontabs.json")
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		ask := oracle(t)
		ask(request{Method: "POST", Path: "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", Body: string(definition)})
		for ask(request{Method: "GET", Path: "/apis/golden.example.com/v1"}).Code != 200 {
			time.Sleep(time.Second)
		}
		time.Sleep(3 * time.Second)
		lines := make([]string, len(requests))
		for i, r := range requests {
			b, err := json.Marshal(ask(r))
			if err != nil {
				t.Fatal(err)
			}
			lines[i] = string(b)
		}
		ask(request{Method: "DELETE", Path: "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/crontabs.golden.example.com"})
		if err := os.WriteFile("testdata/answers.json", []byte("[\n"+strings.Join(lines, ",\n")+"\n]\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var want []answer
	readFile(t, "testdata/answers.json", &want)
	if len(want) != len(requests) {
		t.Fatalf("%d answers to %d requests: record them", len(want), len(requests))
	}
	in(t, func(c *cluster) {
		c.define(string(definition))
		client, err := rest.HTTPClientFor(c.server.Config())
		if err != nil {
			t.Fatal(err)
		}
		defer client.CloseIdleConnections()
		for i, r := range requests {
			synctest.Wait()
			got := send(c.ctx, c.T, client, "http://apiserver", "", r)
			w, g := asText(t, want[i]), asText(t, got)
			if w != g {
				t.Errorf("%d: %s %s %s\nwant %s\ngot  %s", i, r.Method, r.Path, r.Body, w, g)
			}
		}
	})
}

func readFile(t *testing.T, name string, into any) {
	t.Helper()
	data, err := os.ReadFile(name)
	if err == nil {
		err = json.Unmarshal(data, into)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func asText(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func oracle(t *testing.T) func(request) answer {
	host, token := os.Getenv("KNARR_ORACLE"), os.Getenv("KNARR_ORACLE_TOKEN")
	if host == "" {
		t.Fatal("-update needs KNARR_ORACLE and KNARR_ORACLE_TOKEN")
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
	return func(r request) answer { return send(t.Context(), t, client, host, token, r) }
}

func send(ctx context.Context, t *testing.T, client *http.Client, host, token string, r request) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, r.Method, host+r.Path, strings.NewReader(r.Body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("User-Agent", "golden/1")
	req.Header.Set("Accept", "application/json")
	if r.Accept != "" {
		req.Header.Set("Accept", r.Accept)
	}
	if r.Body != "" || r.Method == "POST" {
		req.Header.Set("Content-Type", "application/json")
	}
	if r.Type != "" {
		req.Header.Set("Content-Type", r.Type)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	a := answer{Code: resp.StatusCode, Warnings: resp.Header.Values("Warning")}
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	if d.Decode(&a.Body) != nil {
		a.Body = string(data)
	}
	a.Body = plain(a.Body)
	return a
}

// volatile are fields whose values differ from run to run. Who owns what is
// compared but for the time, which upstream forgets for writes through scale.
var volatile = map[string]bool{"uid": true, "resourceVersion": true, "creationTimestamp": true, "time": true, "deletionTimestamp": true}

var times = []struct {
	what *regexp.Regexp
	name string
}{
	{regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`), "UID"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT[0-9:]+Z`), "TIME"},
	{regexp.MustCompile(`resourceVersion(\\*": ?\\*"|: ")\d+`), "resourceVersion"},
	{regexp.MustCompile(`^\d+[smh]$`), "AGE"},
}

func plain(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for key := range v {
			if volatile[key] {
				v[key] = fmt.Sprintf("(%s)", key)
				continue
			}
			v[key] = plain(v[key])
		}
	case []any:
		for i := range v {
			v[i] = plain(v[i])
		}
	case string:
		for _, t := range times {
			v = t.what.ReplaceAllString(v, t.name)
		}
		return v
	}
	return v
}
