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

// With -update, told.txt becomes what upstream's document says and the Go types
// do not; without, every line of it must be about a type and a field served.
func TestToldIsUsed(t *testing.T) {
	if *update {
		record(t)
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
	var lines strings.Builder
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
			}
		}
		if len(words) > 0 {
			lines.WriteString(name + " " + strings.Join(words, " ") + "\n")
		}
	}
	if err := os.WriteFile("told.txt", []byte(lines.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}
