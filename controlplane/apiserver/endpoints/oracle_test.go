package endpoints

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"reflect"
	"sort"
	"strings"
	"testing"

	"knarr/controlplane/apiserver/registry"
)

// The golden files are a kube-apiserver v1.36's answers. KNARR_ORACLE is the
// URL of one, KNARR_ORACLE_TOKEN its administrator's token: with them the
// files are written anew.
func oracle(t *testing.T, path, accept string) []byte {
	t.Helper()
	url := os.Getenv("KNARR_ORACLE")
	req, err := http.NewRequest("GET", url+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+os.Getenv("KNARR_ORACLE_TOKEN"))
	req.Header.Set("Accept", accept)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// resources are the parts of discovery documents by name.
func legacyResources(t *testing.T, data []byte) map[string]any {
	t.Helper()
	var doc struct {
		Resources []map[string]any
	}
	if err := json.Unmarshal(data, &doc); err != nil {
		t.Fatalf("%v in %.200s", err, data)
	}
	out := map[string]any{}
	for _, r := range doc.Resources {
		out[r["name"].(string)] = r
	}
	return out
}

func aggregatedResources(t *testing.T, data []byte) map[string]any {
	t.Helper()
	var doc struct {
		Items []struct {
			Metadata struct{ Name string }
			Versions []struct {
				Version   string
				Resources []map[string]any
			}
		}
	}
	if err := json.Unmarshal(data, &doc); err != nil {
		t.Fatalf("%v in %.200s", err, data)
	}
	out := map[string]any{}
	for _, g := range doc.Items {
		for _, v := range g.Versions {
			for _, r := range v.Resources {
				out[g.Metadata.Name+"/"+v.Version+"/"+r["resource"].(string)] = r
			}
		}
	}
	return out
}

const aggregatedAccept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"

// Discovery of the kinds served is the kube-apiserver's.
func TestDiscoveryIsUpstreams(t *testing.T) {
	w := newWholeWorld(t)
	paths := map[string]bool{}
	for _, r := range registry.Resources {
		paths[versionPath(r.GVR().GroupVersion())] = true
	}
	const file = "testdata/discovery.json"
	golden := map[string]json.RawMessage{}
	if os.Getenv("KNARR_ORACLE") != "" {
		for p := range paths {
			golden[p] = oracle(t, p, "application/json")
		}
		for _, p := range []string{"/api", "/apis"} {
			golden[p] = oracle(t, p, aggregatedAccept)
		}
		data, err := json.MarshalIndent(golden, "", " ")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &golden); err != nil {
		t.Fatal(err)
	}
	diff := func(where string, want, got map[string]any) {
		var names []string
		for name := range got {
			names = append(names, name)
		}
		sort.Strings(names)
		for name := range want {
			if got[name] == nil {
				t.Errorf("%s: %s is only there upstream", where, name)
			}
		}
		for _, name := range names {
			if want[name] == nil {
				t.Errorf("%s: %s is not there upstream", where, name)
				continue
			}
			if !reflect.DeepEqual(want[name], got[name]) {
				t.Errorf("%s: %s\nwant %s\ngot  %s", where, name, asJSON(want[name]), asJSON(got[name]))
			}
		}
	}
	for p := range paths {
		_, body, _ := w.do("GET", p, "", "")
		diff(p, legacyResources(t, golden[p]), legacyResources(t, []byte(body)))
	}
	for _, p := range []string{"/api", "/apis"} {
		_, body, _ := w.do("GET", p, "", "", "Accept", aggregatedAccept)
		diff(p, aggregatedResources(t, golden[p]), aggregatedResources(t, []byte(body)))
	}
}

func asJSON(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(err)
	}
	return strings.TrimSpace(string(data))
}
