package openapi

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"flag"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"knarr/controlplane/apiserver/registry"
)

var update = flag.Bool("update", false, "write overrides.txt from the document of the server named by KNARR_ORACLE")

// With -update, overrides.txt becomes what upstream's document says and the Go types
// do not; without, every line of it must be about a type and a field served.
func TestOverridesAreUsed(t *testing.T) {
	if *update {
		record(t)
	}
	b := newBuilder(false)
	b.paths(registry.Resources)
	for name, words := range overrides() {
		s := b.definitions[name]
		if s == nil {
			t.Errorf("overrides.txt: no %s is served", name)
			continue
		}
		for _, word := range words {
			if field, _, _ := partsOf(word); field != "" && place(s, field) == nil {
				t.Errorf("overrides.txt: %s has no %s", name, field)
			}
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
	names, of := definitions(t, "/openapi/v2")
	with := map[string]*Schema{} // v2 has no defaults
	for _, r := range registry.Resources {
		path := "/openapi/v3/apis/" + r.GVK().GroupVersion().String()
		if r.GVK().Group == "" {
			path = "/openapi/v3/api/v1"
		}
		_, schemas := definitions(t, path)
		maps.Copy(with, schemas)
	}
	clear(overrides())
	b, b3 := newBuilder(false), newBuilder(true)
	b.paths(registry.Resources)
	b3.paths(registry.Resources)
	var lines, texts strings.Builder
	for _, name := range names {
		their, our := of[name], b.definitions[name]
		if our == nil {
			continue
		}
		var words []string
		if !slices.Equal(their.Required, our.Required) {
			words = append(words, "="+strings.Join(their.Required, "|"))
		}
		if len(their.Unions) > 0 {
			words = append(words, "^"+compact(their.Unions))
		}
		words = append(words, described("", their.Description, our.Description)...)
		for _, field := range slices.Sorted(maps.Keys(our.Properties)) {
			theirs, ours := their.Properties[field], our.Properties[field]
			words = append(words, described(field, theirs.Description, ours.Description)...)
			if how := theirs.MapType + theirs.ListType; how != ours.MapType+ours.ListType {
				words = append(words, field+"@"+how)
			}
			for _, f := range []string{field, field + "[]", field + "{}"} {
				if p := place(their, f); p != nil && len(p.Enum) > 0 {
					words = append(words, f+"="+strings.Join(p.Enum, "|"))
					texts.WriteString(enumDescriptionsOf(name, f, p.Description))
				}
			}
			if t3, o3 := with[name], b3.definitions[name]; t3 != nil && t3.Properties[field] != nil {
				if d := compact(t3.Properties[field].Default); d != string(o3.Properties[field].Default) {
					words = append(words, field+"~"+d)
				}
			}
		}
		if len(words) > 0 {
			lines.WriteString(strings.Join(append([]string{name}, words...), "\t") + "\n")
		}
	}
	if err := os.WriteFile("enum_descriptions.txt", []byte(texts.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("overrides.txt", []byte(lines.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

// described is the word that makes ours what upstream says of a field, without its values.
func described(field, theirs, ours string) []string {
	theirs, _, _ = strings.Cut(theirs, "\n\nPossible enum values:")
	switch theirs {
	case ours:
		return nil
	case ours + "\n":
		return []string{field + "+"}
	}
	return []string{field + strconv.Quote(theirs)}
}

// enumDescriptionsOf are the lines of enum_descriptions.txt that a description gives.
func enumDescriptionsOf(name, field, description string) string {
	var lines strings.Builder
	_, items, _ := strings.Cut(description, "Possible enum values:\n - ")
	for item := range strings.SplitSeq(items, "\n - ") {
		if value, text, ok := strings.Cut(strings.TrimPrefix(item, "`"), "` "); ok {
			lines.WriteString(name + " " + field + " " + value + " " + text + "\n")
		}
	}
	return lines.String()
}

func compact(data []byte) string {
	var b bytes.Buffer
	if len(data) > 0 && json.Compact(&b, data) != nil {
		return ""
	}
	return b.String()
}

// definitions are those of a document of the server named by KNARR_ORACLE.
func definitions(t *testing.T, path string) ([]string, map[string]*Schema) {
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, os.Getenv("KNARR_ORACLE")+path, nil)
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
	var doc struct {
		Definitions map[string]*Schema
		Components  struct{ Schemas map[string]*Schema }
	}
	if err := json.Unmarshal(data, &doc); err != nil {
		t.Fatal(err)
	}
	if doc.Definitions == nil {
		doc.Definitions = doc.Components.Schemas
	}
	return slices.Sorted(maps.Keys(doc.Definitions)), doc.Definitions
}
