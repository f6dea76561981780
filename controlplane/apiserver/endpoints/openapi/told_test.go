package openapi

import (
	"crypto/tls"
	"encoding/json"
	"flag"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"knarr/controlplane/apiserver/registry"
)

var update = flag.Bool("update", false, "write told.txt from the document of the server named by KNARR_ORACLE")

// With -update, told.txt and meanings.txt become what upstream's document says and the Go types
// do not; without, every line of it must be about a type and a field served.
func TestToldIsUsed(t *testing.T) {
	if *update {
		record(t)
		return
	}
	b := newBuilder(false)
	b.paths(registry.Resources)
	for name, of := range told() {
		s := b.definitions[name]
		if s == nil {
			t.Errorf("told.txt: no %s is served", name)
			continue
		}
		for field := range of {
			if field != "" && s.Properties[field] == nil {
				t.Errorf("told.txt: %s has no %s", name, field)
			}
		}
	}
	for m := range meanings() {
		if values := strings.Split(told()[m[0]][m[1]], "|"); !slices.Contains(values, strings.Trim(m[2], `"`)) {
			t.Errorf("meanings.txt: %s in %s has no value %s", m[1], m[0], m[2])
		}
	}
}

func TestDescribe(t *testing.T) {
	for _, c := range []struct {
		name, field string
		values      []string
		want        string
	}{
		{"io.k8s.api.apps.v1.DeploymentStrategy", "type", []string{"Recreate", "RollingUpdate"},
			"what it is\n\nPossible enum values:\n - `\"Recreate\"` Kill all existing pods before creating new ones.\n" +
				" - `\"RollingUpdate\"` Replace the old ReplicaSets by new one using rolling update i.e gradually scale down the old ReplicaSets and scale up the new one."},
		{"io.k8s.api.core.v1.PodSpec", "restartPolicy", []string{"Always", "Never"},
			"what it is\n\nPossible enum values:\n - `\"Always\"`\n - `\"Never\"`"},
	} {
		if got := describe("what it is", c.name, c.field, c.values); got != c.want {
			t.Errorf("%s of %s: %q, want %q", c.field, c.name, got, c.want)
		}
	}
}

func record(t *testing.T) {
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, os.Getenv("KNARR_ORACLE")+"/openapi/v2", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+os.Getenv("KNARR_ORACLE_TOKEN"))
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
	var theirs struct{ Definitions map[string]*Schema }
	if err := json.Unmarshal(data, &theirs); err != nil {
		t.Fatal(err)
	}
	clear(told())
	b := newBuilder(false)
	b.paths(registry.Resources)
	var lines, texts strings.Builder
	for _, name := range slices.Sorted(maps.Keys(theirs.Definitions)) {
		their, our := theirs.Definitions[name], b.definitions[name]
		if our == nil {
			continue
		}
		var words []string
		if !slices.Equal(their.Required, our.Required) {
			words = append(words, "="+strings.Join(their.Required, "|"))
		}
		for _, field := range slices.Sorted(maps.Keys(their.Properties)) {
			if enum := their.Properties[field].Enum; len(enum) > 0 && our.Properties[field] != nil {
				words = append(words, field+"="+strings.Join(enum, "|"))
				_, items, _ := strings.Cut(their.Properties[field].Description, "Possible enum values:\n - ")
				for item := range strings.SplitSeq(items, "\n - ") {
					if value, text, ok := strings.Cut(strings.TrimPrefix(item, "`"), "` "); ok {
						texts.WriteString(name + " " + field + " " + value + " " + text + "\n")
					}
				}
			}
		}
		if len(words) > 0 {
			lines.WriteString(name + " " + strings.Join(words, " ") + "\n")
		}
	}
	if err := os.WriteFile("meanings.txt", []byte(texts.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("told.txt", []byte(lines.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}
