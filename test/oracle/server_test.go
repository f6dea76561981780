package oracle

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"sigs.k8s.io/yaml"
)

// apiModule is the folder of k8s.io/api.
var apiModule = sync.OnceValue(func() string {
	out, _ := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/api").Output()
	return strings.TrimSpace(string(out))
})

// A server answers requests: upstream's or ours.
type server struct {
	host, token string
	client      *http.Client
}

// An answer is what is compared, with all that varies from run to run replaced.
type answer struct {
	Name     string          `json:"n"`
	Code     int             `json:"c"`
	Warnings []string        `json:"w,omitempty"`
	Body     json.RawMessage `json:"b,omitempty"`
}

func (s *server) do(ctx context.Context, method, path, contentType, accept string, body []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, s.host+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if contentType == "" {
		contentType = "application/json"
	}
	if accept == "" {
		accept = "application/json"
	}
	req.Header.Set("Content-Type", contentType)
	req.Header.Set("Accept", accept)
	req.Header.Set("User-Agent", "oracle")
	if s.token != "" {
		req.Header.Set("Authorization", "Bearer "+s.token)
	}
	return s.client.Do(req)
}

func (s *server) raw(t *testing.T, method, path, contentType, accept string, body []byte) (int, []string, []byte) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	resp, err := s.do(ctx, method, path, contentType, accept, body)
	if err != nil {
		t.Error(err)
		return 0, nil, nil
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Error(err)
	}
	var warnings []string
	headers, _ := utilnet.ParseWarningHeaders(resp.Header.Values("Warning"))
	for _, h := range headers {
		warnings = append(warnings, tidy(h.Text))
	}
	return resp.StatusCode, warnings, data
}

// play asks everything about a kind.
func (s *server) play(t *testing.T, k kind) []answer {
	t.Helper()
	s.remove(t, k)
	all := s.ask(t, k.before, nil)
	if k.basePath == "" {
		return all
	}
	defer s.remove(t, k)
	code, _, data := s.raw(t, "POST", k.path, "", "", encode(k.valid))
	if code != 201 {
		t.Errorf("%s: base object: %d %s", k.name, code, data)
		return all
	}
	if mark, ok := settled[k.name]; ok {
		data = s.settle(t, k, mark)
	}
	var base map[string]any
	if err := json.Unmarshal(data, &base); err != nil {
		t.Error(err)
	}
	return append(all, s.ask(t, k.after, base)...)
}

// settled is what the status of some kinds' objects says when the server has
// done with them.
var settled = map[string]string{
	"customresourcedefinitions.apiextensions.k8s.io": `"Established","status":"True"`,
	customs: `"Established","status":"True"`,
	"flowschemas.flowcontrol.apiserver.k8s.io": `"Dangling","status":"False"`,
}

// settle waits until the base object's status has mark.
func (s *server) settle(t *testing.T, k kind, mark string) []byte {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	resp, err := s.do(ctx, "GET", k.path+"?watch=1&timeoutSeconds=30&fieldSelector=metadata.name%3D"+at(k.valid, []string{"metadata", "name"}).(string), "", "", nil)
	if err != nil {
		t.Error(err)
		return nil
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var event struct{ Object json.RawMessage }
		if err := json.Unmarshal(lines.Bytes(), &event); err != nil {
			t.Error(err)
			return nil
		}
		if strings.Contains(string(event.Object), mark) {
			return event.Object
		}
	}
	t.Errorf("%s: the base object has not got %s", k.name, mark)
	return nil
}

// remove takes the base object away, whatever holds it.
func (s *server) remove(t *testing.T, k kind) {
	if k.basePath == "" {
		return
	}
	s.raw(t, "DELETE", k.basePath+"?gracePeriodSeconds=0&propagationPolicy=Background", "", "", nil)
	if code, _, _ := s.raw(t, "GET", k.basePath, "", "", nil); code == 404 {
		return
	}
	if k.name == "namespaces" {
		s.raw(t, "PUT", k.basePath+"/finalize", "", "", encode(with(k.valid, []string{"spec"}, map[string]any{})))
		return
	}
	s.raw(t, "PATCH", k.basePath, "application/merge-patch+json", "", []byte(`{"metadata":{"finalizers":null}}`))
}

const workers = 4

func (s *server) ask(t *testing.T, requests []request, base map[string]any) []answer {
	all := make([]answer, len(requests))
	next := make(chan int)
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for i := range next {
				all[i] = s.one(t, requests[i], base)
			}
		})
	}
	for i := range requests {
		next <- i
	}
	close(next)
	wg.Wait()
	return all
}

func (s *server) one(t *testing.T, r request, base map[string]any) answer {
	var body []byte
	if r.body != nil {
		body = encode(r.body)
		if raw, ok := r.body.(json.RawMessage); ok {
			body = raw
		}
	}
	if r.change != nil {
		body = encode(with(base, r.change.path, r.change.value))
	}
	code, warnings, data := s.raw(t, r.method, r.path, r.contentType, r.accept, body)
	for range 100 {
		if r.until == "" || strings.Contains(string(data), r.until) {
			break
		}
		time.Sleep(100 * time.Millisecond)
		code, warnings, data = s.raw(t, r.method, r.path, r.contentType, r.accept, body)
	}
	a := answer{Name: r.name, Code: code, Warnings: warnings}
	var v any
	if strings.Contains(r.accept, "yaml") {
		if asJSON, err := yaml.YAMLToJSON(data); err == nil {
			data = asJSON
		}
	}
	if err := json.Unmarshal(data, &v); err != nil {
		a.Body = encode(tidy(string(data)))
		return a
	}
	if r.digest {
		v = digest(v)
	}
	steady(v)
	a.Body = []byte(tidy(string(encode(v))))
	return a
}

var varying = []struct {
	*regexp.Regexp
	instead string
}{
	{regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`), "UID"},
	{regexp.MustCompile(`20(2[6-9]|[3-9]\d)-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z| \+0000 UTC)( m=[+0-9.]+)?`), "TIME"},
	{regexp.MustCompile(`kube-api-access-[a-z0-9]{5}`), "kube-api-access-RANDOM"},
	{regexp.MustCompile(`10\.96\.\d+\.\d+\b`), "10.96.0.IP"},
	{regexp.MustCompile(`(odePort":)3[0-2]\d{3}\b`), "${1}30000"},
	{regexp.MustCompile(`0x[0-9a-f]{6,}`), "0xPOINTER"},
	{regexp.MustCompile(`(serverAddress":")[^"]*`), "${1}ADDRESS"},
	{regexp.MustCompile(`(ResourceVersion in (?:precondition|record|object meta)[ :(]+)\d+`), "${1}VERSION"},
	{regexp.MustCompile(`hash=[0-9A-F]{128}`), "hash=HASH"},
	{regexp.MustCompile(`(\\"resourceVersion[\\]+":[\\]+")\d+`), "${1}VERSION"},
}

// tidy replaces what varies in text.
func tidy(s string) string {
	for _, v := range varying {
		s = v.ReplaceAllString(s, v.instead)
	}
	return s
}

var age = regexp.MustCompile(`^(\d+[smhd])+$`)

// steady replaces what varies in an object.
func steady(v any) {
	switch v := v.(type) {
	case []any:
		for i, x := range v {
			if s, ok := x.(string); ok && age.MatchString(s) {
				v[i] = "AGE"
			}
			steady(x)
		}
	case map[string]any:
		if rv, ok := v["resourceVersion"].(string); ok && rv != "" {
			v["resourceVersion"] = "VERSION"
		}
		name, _ := v["name"].(string)
		if prefix, ok := v["generateName"].(string); ok && prefix != "" && strings.HasPrefix(name, prefix) {
			v["name"] = prefix + "RANDOM"
		}
		for _, x := range v {
			steady(x)
		}
	}
}

// prepare makes the namespace and what admission wants in it.
func (s *server) prepare(t *testing.T) {
	s.raw(t, "POST", "/api/v1/namespaces", "", "", fmt.Appendf(nil, `{"metadata":{"name":%q}}`, namespace))
	s.raw(t, "POST", "/api/v1/namespaces/"+namespace+"/serviceaccounts", "", "", []byte(`{"metadata":{"name":"default"},"automountServiceAccountToken":false}`))
}
