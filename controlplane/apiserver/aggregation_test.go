package apiserver_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/keyutil"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-openapi/pkg/spec3"

	"knarr/controlplane/apiserver"
	"knarr/controlplane/apiserver/audit"
	"knarr/internal/keypair"
	"knarr/internal/memnet"
)

// beside is a server, in fake time, beside another that serves wardle.example.com.
type beside struct {
	*world
	ca    []byte
	mu    sync.Mutex
	seen  http.Header // of the last request
	peer  string      // its certificate's name
	broke bool
	tag   string         // of its OpenAPI
	no    string         // a path that it does not have
	asked map[string]int // by path and answer
}

// frontProxy is the certificate by which the API server is known.
func frontProxy(t *testing.T) *keypair.File {
	t.Helper()
	identity, certificate := serving(t, "front-proxy-client")
	key, err := keyutil.MarshalPrivateKeyToPEM(identity.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, content := range map[string][]byte{"crt": certificate, "key": key} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f, err := keypair.Open(filepath.Join(dir, "crt"), filepath.Join(dir, "key"))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func withOther(t *testing.T, f func(b *beside), change ...func(*apiserver.Config)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &beside{tag: `"first"`, asked: map[string]int{}}
		cert, ca := serving(t, "api.default.svc")
		identity := frontProxy(t)
		b.ca = ca
		l := memnet.Listen()
		srv := &http.Server{Handler: b.serve(), ErrorLog: log.New(discard{}, "", 0),
			TLSConfig: &tls.Config{Certificates: []tls.Certificate{cert}, ClientAuth: tls.RequestClientCert}}
		var wg sync.WaitGroup
		wg.Go(func() { _ = srv.ServeTLS(l, "", "") })
		w, done := newBubble(t, append(change, func(c *apiserver.Config) { c.Dial, c.Identity = l.Dial, identity })...)
		b.world = w
		f(b)
		done()
		l.Close()
		srv.Close()
		wg.Wait()
	})
}

func (b *beside) serve() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/apis/wardle.example.com/v1", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(metav1.APIResourceList{GroupVersion: "wardle.example.com/v1", APIResources: []metav1.APIResource{
			{Name: "flunders", SingularName: "flunder", Namespaced: true, Kind: "Flunder", Verbs: metav1.Verbs{"get", "list"}},
			{Name: "flunders/status", Namespaced: true, Kind: "Flunder", Verbs: metav1.Verbs{"get"}}}})
	})
	known := func(w http.ResponseWriter, r *http.Request) (tag string, answered bool) {
		b.mu.Lock()
		defer b.mu.Unlock()
		code := http.StatusOK
		switch {
		case r.URL.Path == b.no:
			code = http.StatusNotFound
		case r.Header.Get("X-Remote-User") != "system:aggregator":
			code = http.StatusForbidden
		case b.tag != "" && r.Header.Get("If-None-Match") == b.tag:
			code = http.StatusNotModified
		}
		b.asked[fmt.Sprint(r.URL.Path, " ", code)]++
		w.Header().Set("ETag", b.tag)
		if code != http.StatusOK {
			w.WriteHeader(code)
		}
		return b.tag, code != http.StatusOK
	}
	mux.HandleFunc("/openapi/v3", func(w http.ResponseWriter, r *http.Request) {
		if _, answered := known(w, r); answered {
			return
		}
		fmt.Fprint(w, `{"paths":{"apis/wardle.example.com/v1":{"serverRelativeURL":"/openapi/v3/apis/wardle.example.com/v1?hash=X"}}}`)
	})
	mux.HandleFunc("/openapi/v2", func(w http.ResponseWriter, r *http.Request) {
		tag, answered := known(w, r)
		if answered {
			return
		}
		fmt.Fprintf(w, `{"swagger":"2.0","info":{"title":"theirs","version":"v1"},"paths":{
			"/apis/wardle.example.com/v1/flunders":{"get":{"responses":{"200":{"description":"OK","schema":{"$ref":"#/definitions/v1.Flunder"}}}}},
			"/apis/other.example.com/v1/flunders":{"get":{"responses":{"200":{"description":"OK","schema":{"$ref":"#/definitions/v1.Other"}}}}}},
			"definitions":{"v1.Flunder":{"description":%q,"type":"object"},"v1.Other":{"type":"object"}}}`, "A flunder of "+tag)
	})
	mux.HandleFunc("/openapi/v3/apis/wardle.example.com/v1", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"openapi":"3.0.0"}`) })
	mux.HandleFunc("/apis/wardle.example.com/v1/namespaces/default/flunders/away", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "https://elsewhere/", http.StatusFound)
	})
	mux.HandleFunc("/apis/wardle.example.com/v1/namespaces/default/flunders/f/exec", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Remote-User") == "refused" {
			http.Error(w, "no", http.StatusForbidden)
			return
		}
		c, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer c.Close()
		fmt.Fprint(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		rw.Flush()
		line, _ := rw.ReadString('\n')
		fmt.Fprint(rw, "echo "+line)
		rw.Flush()
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("watch") != "" {
			for i := range 2 {
				fmt.Fprintf(w, "%d\n", i)
				_ = http.NewResponseController(w).Flush()
			}
			<-r.Context().Done()
			return
		}
		fmt.Fprintf(w, `{"kind":"Flunder","path":%q,"query":%q}`, r.URL.EscapedPath(), r.URL.RawQuery)
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b.mu.Lock()
		b.seen, b.peer = r.Header.Clone(), ""
		if p := r.TLS.PeerCertificates; len(p) > 0 {
			b.peer = p[0].DNSNames[0]
		}
		broke := b.broke
		b.mu.Unlock()
		if broke {
			http.Error(w, "out of order", http.StatusInternalServerError)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

const wardle = "v1.wardle.example.com"

// register makes the APIService, and what leads to the server.
func (b *beside) register() {
	b.t.Helper()
	b.must(b.admin.RESTClient().Post().AbsPath("/apis/apiregistration.k8s.io/v1/apiservices").Body(b.encode(&apiregistrationv1.APIService{
		TypeMeta: metav1.TypeMeta{Kind: "APIService", APIVersion: "apiregistration.k8s.io/v1"}, ObjectMeta: metav1.ObjectMeta{Name: wardle},
		Spec: apiregistrationv1.APIServiceSpec{Group: "wardle.example.com", Version: "v1", GroupPriorityMinimum: 2000, VersionPriority: 200, CABundle: b.ca,
			Service: &apiregistrationv1.ServiceReference{Namespace: "default", Name: "api"}}})).SetHeader("Content-Type", "application/json").Do(b.ctx).Error())
}

func (b *beside) encode(v any) []byte {
	data, err := json.Marshal(v)
	b.must(err)
	return data
}

func (b *beside) service() {
	b.t.Helper()
	_, err := b.admin.CoreV1().Services("default").Create(b.ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "api"},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 443}}}}, metav1.CreateOptions{})
	b.must(err)
}

func (b *beside) endpoint() {
	b.t.Helper()
	_, err := b.admin.DiscoveryV1().EndpointSlices("default").Create(b.ctx, &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "api", Labels: map[string]string{discoveryv1.LabelServiceName: "api"}}, AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.1.2.3"}}}, Ports: []discoveryv1.EndpointPort{{Name: new(""), Port: new(int32(443))}}}, metav1.CreateOptions{})
	b.must(err)
}

// condition is Available as "status reason: message".
func (b *beside) condition(name string) string {
	b.t.Helper()
	synctest.Wait()
	data, err := b.admin.RESTClient().Get().AbsPath("/apis/apiregistration.k8s.io/v1/apiservices/"+name).SetHeader("Accept", "application/json").Do(b.ctx).Raw()
	b.must(err)
	var s apiregistrationv1.APIService
	b.must(json.Unmarshal(data, &s))
	if len(s.Status.Conditions) != 1 {
		return ""
	}
	c := s.Status.Conditions[0]
	return fmt.Sprintf("%s %s: %s", c.Status, c.Reason, c.Message)
}

// get asks through the API server as a user.
func (b *beside) get(who user.Info, path string) (int, string) {
	b.t.Helper()
	cfg := b.Config(who)
	cfg.ContentConfig = rest.ContentConfig{}
	tr := &http.Transport{DialContext: cfg.Dial}
	defer tr.CloseIdleConnections()
	req, err := http.NewRequestWithContext(b.ctx, "GET", "http://apiserver"+path, nil)
	b.must(err)
	req.Header.Set("X-Remote-User", "somebody-else")
	req.Header.Set("Accept", "application/json")
	resp, err := (&http.Client{Transport: tr, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}).Do(req)
	b.must(err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	b.must(err)
	return resp.StatusCode, string(body)
}

var root = &user.DefaultInfo{Name: "root", UID: "u", Groups: []string{user.SystemPrivilegedGroup}, Extra: map[string][]string{"a/b": {"c"}}}

func TestAggregatedAvailability(t *testing.T) {
	withOther(t, func(b *beside) {
		b.register()
		want := func(c string) {
			t.Helper()
			if got := b.condition(wardle); got != c {
				t.Errorf("condition %s\nwant      %s", got, c)
			}
		}
		want(`False ServiceNotFound: service/api in "default" is not present`)
		if code, body := b.get(root, "/apis/wardle.example.com/v1/flunders"); code != 503 || body != "service unavailable\n" {
			t.Errorf("%d %q", code, body)
		}
		b.service()
		want(`False EndpointsNotFound: cannot find endpointslices for service/api in "default"`)
		b.mu.Lock()
		b.broke = true
		b.mu.Unlock()
		b.endpoint()
		want(`False FailedDiscoveryCheck: failing or missing response from https://api.default.svc:443/apis/wardle.example.com/v1: bad status from https://api.default.svc:443/apis/wardle.example.com/v1: 500`)
		b.mu.Lock()
		b.broke = false
		b.mu.Unlock()
		time.Sleep(time.Minute)
		want("True Passed: all checks passed")
		b.must(b.admin.DiscoveryV1().EndpointSlices("default").Delete(b.ctx, "api", metav1.DeleteOptions{}))
		want(`False EndpointsNotFound: cannot find endpointslices for service/api in "default"`)
		_, metrics := b.get(root, "/metrics")
		for _, line := range []string{
			`aggregator_unavailable_apiservice{name="` + wardle + `"} 1`, `aggregator_unavailable_apiservice{name="v1."} 0`,
			`aggregator_unavailable_apiservice_total{name="` + wardle + `",reason="EndpointsNotFound"} 1`,
		} {
			if !strings.Contains(metrics, "\n"+line+"\n") {
				t.Error("the metrics lack", line)
			}
		}
		b.must(b.admin.RESTClient().Delete().AbsPath("/apis/apiregistration.k8s.io/v1/apiservices/" + wardle).Do(b.ctx).Error())
		synctest.Wait()
		if _, metrics := b.get(root, "/metrics"); strings.Contains(metrics, wardle) {
			t.Error("the metrics have an APIService that is gone")
		}
	})
}

func TestAggregatedRequests(t *testing.T) {
	withOther(t, func(b *beside) {
		b.service()
		b.endpoint()
		b.register()
		if got := b.condition(wardle); !strings.HasPrefix(got, "True") {
			t.Fatal(got)
		}
		if code, body := b.get(root, "/apis/wardle.example.com/v1/namespaces/default/flunders/a%2Fb?x=y"); code != 200 || body != `{"kind":"Flunder","path":"/apis/wardle.example.com/v1/namespaces/default/flunders/a%2Fb","query":"x=y"}` {
			t.Errorf("%d %s", code, body)
		}
		b.mu.Lock()
		if b.peer != "front-proxy-client" || b.seen.Get("X-Remote-User") != "root" || b.seen.Get("X-Remote-Uid") != "u" || len(b.seen["X-Remote-User"]) != 1 ||
			!slices.Contains(b.seen.Values("X-Remote-Group"), user.SystemPrivilegedGroup) || b.seen.Get("X-Remote-Extra-a%2fb") != "c" && b.seen.Get("X-Remote-Extra-A%2fb") != "c" {
			t.Errorf("%s %v", b.peer, b.seen)
		}
		b.mu.Unlock()
		// Who may not is refused here.
		if code, _ := b.get(&user.DefaultInfo{Name: "bob"}, "/apis/wardle.example.com/v1/namespaces/default/flunders/a"); code != 403 {
			t.Errorf("bob got %d", code)
		}
		// CVE-2022-3172: the server sends nobody elsewhere.
		if code, body := b.get(root, "/apis/wardle.example.com/v1/namespaces/default/flunders/away"); code != 502 || !strings.Contains(body, "redirect") {
			t.Errorf("%d %s", code, body)
		}
		_, body := b.get(root, "/apis")
		var groups metav1.APIGroupList
		b.must(json.Unmarshal([]byte(body), &groups))
		if last := groups.Groups[len(groups.Groups)-1]; last.Name != "wardle.example.com" || last.PreferredVersion.Version != "v1" || groups.Groups[0].Name != "apiregistration.k8s.io" {
			t.Errorf("groups %v", groups.Groups)
		}
		if code, body := b.get(root, "/apis/wardle.example.com"); code != 200 || !strings.Contains(body, `"kind":"APIGroup"`) {
			t.Errorf("%d %s", code, body)
		}
		if _, body := b.get(root, "/apis/wardle.example.com/v1"); !strings.Contains(body, "flunders/status") {
			t.Error(body)
		}
		if _, body := b.get(root, "/openapi/v3"); !strings.Contains(body, "/openapi/v3/apis/wardle.example.com/v1?hash=X") {
			t.Error("the index lacks the other server's document")
		}
		if _, body := b.get(root, "/openapi/v3/apis/wardle.example.com/v1?hash=X"); body != `{"openapi":"3.0.0"}` {
			t.Error(body)
		}
		_, v2 := b.get(root, "/openapi/v2")
		var merged struct {
			Info        struct{ Title string }
			Paths       map[string]any
			Definitions map[string]struct{ Description string }
		}
		b.must(json.Unmarshal([]byte(v2), &merged))
		if merged.Info.Title != "Kubernetes" || merged.Paths["/apis/wardle.example.com/v1/flunders"] == nil || merged.Paths["/api/v1/pods"] == nil ||
			merged.Paths["/apis/other.example.com/v1/flunders"] != nil || merged.Definitions["v1.Flunder"].Description != `A flunder of "first"` {
			t.Errorf("merged OpenAPI: %q, %d paths, %v", merged.Info.Title, len(merged.Paths), merged.Definitions["v1.Flunder"])
		}
		b.mu.Lock()
		b.tag = `"second"`
		b.mu.Unlock()
		<-time.After(2 * time.Minute)
		synctest.Wait()
		if _, v2 = b.get(root, "/openapi/v2"); !strings.Contains(v2, `A flunder of \"second\"`) || strings.Contains(v2, `A flunder of \"first\"`) {
			t.Error("a changed document is not taken over")
		}
		b.must(b.admin.RESTClient().Delete().AbsPath("/apis/apiregistration.k8s.io/v1/apiservices/" + wardle).Do(b.ctx).Error())
		synctest.Wait()
		if _, v2 = b.get(root, "/openapi/v2"); strings.Contains(v2, "A flunder of") {
			t.Error("the document of a server that is gone is still there")
		}
		b.register()
		if got := b.condition(wardle); !strings.HasPrefix(got, "True") {
			t.Fatal(got)
		}
		lists, err := b.admin.Discovery().ServerPreferredResources() // asks for aggregated discovery
		b.must(err)
		if !slices.ContainsFunc(lists, func(l *metav1.APIResourceList) bool {
			return l.GroupVersion == "wardle.example.com/v1" && l.APIResources[0].Name == "flunders"
		}) {
			t.Errorf("%v", lists)
		}
		b.must(b.admin.RESTClient().Delete().AbsPath("/apis/apiregistration.k8s.io/v1/apiservices/" + wardle).Do(b.ctx).Error())
		synctest.Wait()
		if code, _ := b.get(root, "/apis/wardle.example.com/v1"); code != 404 {
			t.Errorf("after its APIService the group is %d", code)
		}
		if _, body := b.get(root, "/apis"); strings.Contains(body, "wardle") {
			t.Error("discovery still shows the group")
		}
	})
}

// asks counts what the server is asked for in an hour.
func (b *beside) asks() map[string]int {
	b.mu.Lock()
	b.asked = map[string]int{}
	b.mu.Unlock()
	<-time.After(time.Hour)
	synctest.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.asked
}

// A document that has not changed is asked for as often as upstream does, and
// not sent again.
// What another server answers is its own to write down, as upstream does.
func TestAggregatedAudit(t *testing.T) {
	file := t.TempDir() + "/policy.yaml"
	if err := os.WriteFile(file, []byte(`{"apiVersion":"audit.k8s.io/v1","kind":"Policy","omitStages":["RequestReceived"],"rules":[{"level":"RequestResponse"}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	policy, err := audit.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	policy.To("log", audit.NewLog(&log, audit.JSON), false, audit.Truncating{})
	withOther(t, func(b *beside) {
		b.service()
		b.endpoint()
		b.register()
		b.condition(wardle)
		log.Reset()
		for path, kept := range map[string]bool{"/apis/wardle.example.com/v1/namespaces/default/flunders/a": false, "/api/v1/namespaces/default": true} {
			if code, body := b.get(root, path); code != 200 {
				t.Fatalf("%s: %d %s", path, code, body)
			}
			synctest.Wait() // the answer is out before the event is written
			var ev auditv1.Event
			for line := range bytes.Lines(log.Bytes()) {
				ev = auditv1.Event{} // what a line leaves out is not the one before's
				b.must(json.Unmarshal(line, &ev))
				if ev.RequestURI == path {
					break
				}
			}
			if ev.RequestURI != path || ev.Level != auditv1.LevelRequestResponse || ev.ResponseStatus == nil || ev.ResponseStatus.Code != 200 || (ev.ResponseObject != nil) != kept {
				t.Errorf("%s: %+v", path, ev)
			}
		}
	}, func(c *apiserver.Config) { c.Audit = policy })
}

func TestAggregatedOpenAPIRefetch(t *testing.T) {
	withOther(t, func(b *beside) {
		b.service()
		b.endpoint()
		b.register()
		if got := b.condition(wardle); !strings.HasPrefix(got, "True") {
			t.Fatal(got)
		}
		if got, want := b.asks(), map[string]int{"/openapi/v3 304": 60, "/openapi/v2 304": 60}; !maps.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
		b.mu.Lock()
		b.tag = ""
		b.mu.Unlock()
		if got, want := b.asks(), map[string]int{"/openapi/v3 200": 60, "/openapi/v2 200": 60}; !maps.Equal(got, want) {
			t.Errorf("without tags %v, want %v", got, want)
		}
	})
}

// A server without OpenAPI v3 has one made of its v2, as upstream does.
func TestAggregatedOpenAPIConverted(t *testing.T) {
	withOther(t, func(b *beside) {
		b.no = "/openapi/v3"
		b.service()
		b.endpoint()
		b.register()
		if got := b.condition(wardle); !strings.HasPrefix(got, "True") {
			t.Fatal(got)
		}
		where := func() string {
			var index struct {
				Paths map[string]struct{ ServerRelativeURL string }
			}
			_, body := b.get(root, "/openapi/v3")
			b.must(json.Unmarshal([]byte(body), &index))
			return index.Paths["apis/wardle.example.com/v1"].ServerRelativeURL
		}
		first := where()
		code, body := b.get(root, first)
		var doc spec3.OpenAPI
		b.must(json.Unmarshal([]byte(body), &doc))
		if code != 200 || doc.Version != "3.0.0" || doc.Components.Schemas["v1.Flunder"].Description != `A flunder of "first"` ||
			doc.Paths.Paths["/apis/wardle.example.com/v1/flunders"] == nil {
			t.Errorf("%s: %d %s", first, code, body)
		}
		b.mu.Lock()
		b.tag = `"second"`
		b.mu.Unlock()
		<-time.After(2 * time.Minute)
		synctest.Wait()
		second := where()
		if code, _ := b.get(root, first); first == second || code != http.StatusMovedPermanently {
			t.Errorf("%s, then %s; the first is %d", first, second, code)
		}
		if _, body := b.get(root, second); !strings.Contains(body, `A flunder of \"second\"`) {
			t.Error(body)
		}
		if got, want := b.asks(), map[string]int{"/openapi/v2 304": 60}; !maps.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
		b.must(b.admin.RESTClient().Delete().AbsPath("/apis/apiregistration.k8s.io/v1/apiservices/" + wardle).Do(b.ctx).Error())
		synctest.Wait()
		if code, _ := b.get(root, second); code != 404 || where() != "" {
			t.Errorf("after its APIService the document is %d", code)
		}
	})
}

// CVE-2018-1002105: a tunnel only after the server has agreed to one.
func TestAggregatedUpgrade(t *testing.T) {
	withOther(t, func(b *beside) {
		b.service()
		b.endpoint()
		b.register()
		b.condition(wardle)
		upgrade := func(who string) (int, string) {
			conn, err := b.Config(&user.DefaultInfo{Name: who, Groups: []string{user.SystemPrivilegedGroup}}).Dial(b.ctx, "", "")
			b.must(err)
			defer conn.Close()
			fmt.Fprint(conn, "GET /apis/wardle.example.com/v1/namespaces/default/flunders/f/exec HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
			br := bufio.NewReader(conn)
			resp, err := http.ReadResponse(br, nil)
			b.must(err)
			if resp.StatusCode != http.StatusSwitchingProtocols {
				return resp.StatusCode, ""
			}
			fmt.Fprint(conn, "hello\n")
			line, err := br.ReadString('\n')
			b.must(err)
			return resp.StatusCode, line
		}
		if code, line := upgrade("root"); code != 101 || line != "echo hello\n" {
			t.Errorf("%d %q", code, line)
		}
		if code, _ := upgrade("refused"); code != 403 {
			t.Errorf("refused: %d", code)
		}
		ctx, cancel := context.WithCancel(b.ctx)
		stream, err := b.admin.RESTClient().Get().AbsPath("/apis/wardle.example.com/v1/flunders").Param("watch", "true").Stream(ctx)
		b.must(err)
		line, err := bufio.NewReader(stream).ReadString('\n')
		if b.must(err); line != "0\n" {
			t.Errorf("watch: %q", line)
		}
		cancel()
		stream.Close()
	})
}

func TestLocalAPIServices(t *testing.T) {
	w := newWorld(t)
	data, err := w.admin.RESTClient().Get().AbsPath("/apis/apiregistration.k8s.io/v1/apiservices").SetHeader("Accept", "application/json").Do(w.ctx).Raw()
	w.must(err)
	var list apiregistrationv1.APIServiceList
	w.must(json.Unmarshal(data, &list))
	by := map[string]apiregistrationv1.APIService{}
	for _, s := range list.Items {
		by[s.Name] = s
	}
	apps, core := by["v1.apps"], by["v1."]
	if apps.Spec.GroupPriorityMinimum != 17800 || apps.Spec.VersionPriority != 15 || core.Spec.GroupPriorityMinimum != 18000 ||
		apps.Labels["kube-aggregator.kubernetes.io/automanaged"] != "onstart" || len(apps.Status.Conditions) != 1 || apps.Status.Conditions[0].Reason != "Local" {
		t.Errorf("%+v %+v", apps, core)
	}
	if _, ok := by["v1.apiregistration.k8s.io"]; ok {
		t.Error("the group of APIServices has one itself")
	}
}

// APIServices can be applied, and faults in what is applied are found.
func TestAPIServiceApply(t *testing.T) {
	w := newWorld(t)
	apply := func(spec string) error {
		return w.admin.RESTClient().Patch(types.ApplyPatchType).AbsPath("/apis/apiregistration.k8s.io/v1/apiservices/v1.a.example.com").
			Param("fieldManager", "m").Body([]byte(`{"apiVersion":"apiregistration.k8s.io/v1","kind":"APIService","metadata":{"name":"v1.a.example.com"},"spec":` + spec + `}`)).Do(w.ctx).Error()
	}
	w.must(apply(`{"group":"a.example.com","version":"v1","groupPriorityMinimum":100,"versionPriority":10}`))
	w.must(apply(`{"group":"a.example.com","version":"v1","groupPriorityMinimum":100,"versionPriority":20}`))
	refused(t, apply(`{"group":"a.example.com","nosuch":1}`), ".spec.nosuch: field not declared in schema")
}

// The groups of CustomResourceDefinitions have APIServices that come and go
// with them.
func TestCustomAPIServices(t *testing.T) {
	withOther(t, func(b *beside) {
		const definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
		b.must(b.admin.RESTClient().Post().AbsPath(definitions).SetHeader("Content-Type", "application/json").Body([]byte(`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition",
			"metadata":{"name":"things.c.example.com"},"spec":{"group":"c.example.com","scope":"Namespaced","names":{"plural":"things","kind":"Thing"},
			"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}}]}}`)).Do(b.ctx).Error())
		time.Sleep(time.Minute)
		if got := b.condition("v1.c.example.com"); got != "True Local: Local APIServices are always available" {
			t.Errorf("condition %q", got)
		}
		b.must(b.admin.RESTClient().Delete().AbsPath(definitions + "/things.c.example.com").Do(b.ctx).Error())
		time.Sleep(time.Minute)
		if code, _ := b.get(root, "/apis/apiregistration.k8s.io/v1/apiservices/v1.c.example.com"); code != 404 {
			t.Errorf("after its definition the group's APIService is %d", code)
		}
	})
}
