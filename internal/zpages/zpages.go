// Package zpages answers /flagz and /statusz: what the flags of a component are, and
// which program it is, for people as text, or as an object of the group config.k8s.io. It
// reads the flags when it is asked for them, and writes nothing.
package zpages

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"mime"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"knarr/internal/version"
)

// The features that the pages are, both on by default.
const (
	FlagzFeature   = "ComponentFlagz"
	StatuszFeature = "ComponentStatusz"
)

// A page is about the process, as text or, where the group config.k8s.io is asked for, as
// an object of a kind.
type page struct {
	kind   string
	text   func(w *bytes.Buffer)
	object func(metav1.TypeMeta) any
}

// notice is at the top of both pages.
const notice = "\n%s %s\nWarning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees and is for debugging purposes only.\n"

// started is when the process began, as nearly as it matters to people.
var started = time.Now()

type status struct {
	metav1.TypeMeta
	Metadata         name        `json:"metadata"`
	StartTime        metav1.Time `json:"startTime"`
	UptimeSeconds    int64       `json:"uptimeSeconds"`
	GoVersion        string      `json:"goVersion"`
	BinaryVersion    string      `json:"binaryVersion"`
	EmulationVersion string      `json:"emulationVersion"`
	Paths            []string    `json:"paths"`
}

type flagValues struct {
	metav1.TypeMeta
	Metadata name              `json:"metadata"`
	Flags    map[string]string `json:"flags"`
}

type name struct {
	Name string `json:"name"`
}

// Statusz says which program a component is, since when it runs and what it serves; of
// paths the first part counts.
func Statusz(component string, paths []string) http.Handler {
	binary := strings.TrimPrefix(version.Kubernetes, "v")
	emulated := binary[:strings.LastIndex(binary, ".")]
	paths = firstParts(paths)
	return page{"Statusz", func(w *bytes.Buffer) {
		_, _ = fmt.Fprintf(w, notice, component, "statusz")
		_, _ = fmt.Fprintf(w, "\nStarted: %s\nUp: %s\nGo version: %s\nBinary version: %s\nEmulation version: %s\nPaths: %s\n",
			started.Format(time.UnixDate), uptime(time.Since(started)), runtime.Version(), binary, emulated, strings.Join(paths, " "))
	}, func(kind metav1.TypeMeta) any {
		return status{kind, name{component}, metav1.NewTime(started), int64(time.Since(started).Seconds()), runtime.Version(), binary, emulated, paths}
	}}
}

// firstParts are the first parts of paths, each once, in order. Pure.
func firstParts(paths []string) []string {
	var out []string
	for _, p := range paths {
		if parts := strings.Split(p, "/"); len(parts) > 1 && parts[1] != "" {
			out = append(out, "/"+parts[1])
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// uptime is a duration as upstream writes it.
func uptime(d time.Duration) string {
	s := int(d.Seconds())
	return fmt.Sprintf("%d hr %02d min %02d sec", s/3600, s/60%60, s%60)
}

// Flagz says what the flags of a component are.
func Flagz(component string, flags func() map[string]string) http.Handler {
	return page{"Flagz", func(w *bytes.Buffer) {
		_, _ = fmt.Fprintf(w, notice, component, "flagz")
		all := flags()
		for _, name := range slices.Sorted(maps.Keys(all)) {
			_, _ = fmt.Fprintf(w, "%s: %s\n", name, all[name])
		}
	}, func(kind metav1.TypeMeta) any {
		return flagValues{kind, name{component}, flags()}
	}}
}

const group = "config.k8s.io"

const plain, inJSON, inYAML = "text/plain", "application/json", "application/yaml"

// accepted are the media types of a page, in the order they are preferred.
var accepted = []string{inJSON, inYAML, plain}

// A clause is one of an Accept header.
type clause struct {
	media  string
	params map[string]string
	weight float64
}

// clauses are those of an Accept header, the ones with more weight first. Pure.
func clauses(accept string) []clause {
	var out []clause
	for part := range strings.SplitSeq(accept, ",") {
		media, params, err := mime.ParseMediaType(part)
		if err != nil {
			continue
		}
		weight, err := strconv.ParseFloat(cmp.Or(params["q"], "1"), 64)
		if err != nil {
			weight = 1
		}
		out = append(out, clause{media, params, weight})
	}
	slices.SortStableFunc(out, func(a, b clause) int { return cmp.Compare(b.weight, a.weight) })
	return out
}

// choose says as what a page is sent, and in which version of its kind. Pure.
func choose(accept, kind string) (media, version string, ok bool) {
	if strings.TrimSpace(accept) == "" {
		return plain, "", true
	}
	for _, c := range clauses(accept) {
		_, as := c.params["as"]
		_, g := c.params["g"]
		_, v := c.params["v"]
		converted := c.params["g"] == group && c.params["as"] == kind && (c.params["v"] == "v1alpha1" || c.params["v"] == "v1beta1")
		for _, media := range accepted {
			whole, _, _ := strings.Cut(media, "/")
			if c.media != media && c.media != whole+"/*" && c.media != "*/*" {
				continue
			}
			if media == plain && !as && !g && !v || media != plain && converted {
				return media, c.params["v"], true
			}
		}
	}
	return "", "", false
}

// ServeHTTP sends the page as what is accepted.
func (p page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	media, version, ok := choose(r.Header.Get("Accept"), p.kind)
	if !ok {
		refuse(w)
		return
	}
	var b bytes.Buffer
	if media == plain {
		media = "text/plain; charset=utf-8"
		p.text(&b)
	} else {
		if err := p.encode(&b, media, version); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		media = fmt.Sprintf("%s;g=%s;v=%s;as=%s", media, group, version, p.kind)
	}
	if version == "v1alpha1" {
		w.Header().Set("Warning", fmt.Sprintf(`299 - "This version of the %s endpoint is deprecated. Please use a newer version."`, strings.ToLower(p.kind)))
	}
	w.Header().Set("Content-Type", media)
	_, _ = w.Write(b.Bytes())
}

func (p page) encode(b *bytes.Buffer, media, version string) error {
	o := p.object(metav1.TypeMeta{Kind: p.kind, APIVersion: group + "/" + version})
	if media == inJSON {
		return json.NewEncoder(b).Encode(o)
	}
	y, err := yaml.Marshal(o)
	b.Write(y)
	return err
}

// refuse says what is accepted.
func refuse(w http.ResponseWriter) {
	w.Header().Set("Content-Type", inJSON)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(http.StatusNotAcceptable)
	_ = json.NewEncoder(w).Encode(&metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status: metav1.StatusFailure, Code: http.StatusNotAcceptable, Reason: metav1.StatusReasonNotAcceptable,
		Message: "only the following media types are accepted: " + strings.Join(accepted, ", ")})
}
