package secureserving

import (
	"encoding/json"
	"fmt"
	"maps"
	"mime"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"knarr/internal/version"
)

// A zpage is a page about the process, as text for people or, where the group
// config.k8s.io is asked for, as an object of a kind.
type zpage struct {
	kind   string
	text   func(w http.ResponseWriter)
	fields func() map[string]any
}

// notice is at the top of both pages.
const notice = "\n%s %s\nWarning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees and is for debugging purposes only.\n"

// started is when the process began, as nearly as it matters to people.
var started = time.Now()

// statusz says which program this is, since when it runs and what it serves.
func (c Component) statusz(paths []string) zpage {
	binary := strings.TrimPrefix(version.Kubernetes, "v")
	emulated := binary[:strings.LastIndex(binary, ".")]
	return zpage{"Statusz", func(w http.ResponseWriter) {
		_, _ = fmt.Fprintf(w, notice, c.Name, "statusz")
		_, _ = fmt.Fprintf(w, "\nStarted: %s\nUp: %s\nGo version: %s\nBinary version: %s\nEmulation version: %s\nPaths: %s\n",
			started.Format(time.UnixDate), uptime(time.Since(started)), runtime.Version(), binary, emulated, strings.Join(paths, " "))
	}, func() map[string]any {
		return map[string]any{"metadata": map[string]any{"name": c.Name}, "startTime": metav1.NewTime(started),
			"uptimeSeconds": int64(time.Since(started).Seconds()), "goVersion": runtime.Version(), "binaryVersion": binary,
			"emulationVersion": emulated, "paths": paths}
	}}
}

// uptime is a duration as upstream writes it.
func uptime(d time.Duration) string {
	s := int(d.Seconds())
	return fmt.Sprintf("%d hr %02d min %02d sec", s/3600, s/60%60, s%60)
}

// flagz says what the flags are.
func (c Component) flagz() zpage {
	return zpage{"Flagz", func(w http.ResponseWriter) {
		_, _ = fmt.Fprintf(w, notice, c.Name, "flagz")
		flags := c.Flags()
		for _, name := range slices.Sorted(maps.Keys(flags)) {
			_, _ = fmt.Fprintf(w, "%s: %s\n", name, flags[name])
		}
	}, func() map[string]any {
		return map[string]any{"metadata": map[string]any{"name": c.Name}, "flags": c.Flags()}
	}}
}

const group = "config.k8s.io"

// accepted are the media types of a page.
const accepted = "text/plain, application/json, application/yaml"

func (z zpage) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	accept := strings.TrimSpace(r.Header.Get("Accept"))
	if accept == "" {
		accept = "text/plain"
	}
	for part := range strings.SplitSeq(accept, ",") {
		media, params, err := mime.ParseMediaType(part)
		if err != nil {
			continue
		}
		structured := params["g"] == group && params["as"] == z.kind && (params["v"] == "v1alpha1" || params["v"] == "v1beta1")
		switch {
		case media == "application/json" && structured, media == "application/yaml" && structured:
			z.object(w, media, params["v"])
			return
		case (media == "text/plain" || media == "text/*" || media == "*/*") && params["as"] == "":
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			z.text(w)
			return
		}
	}
	refuse(w, &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: http.StatusNotAcceptable, Reason: metav1.StatusReasonNotAcceptable,
		Message: "only the following media types are accepted: " + accepted}})
}

func (z zpage) object(w http.ResponseWriter, media, v string) {
	o := z.fields()
	o["kind"], o["apiVersion"] = z.kind, group+"/"+v
	b, err := json.Marshal(o)
	if err == nil && media == "application/yaml" {
		b, err = yaml.JSONToYAML(b)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	if v == "v1alpha1" {
		w.Header().Set("Warning", fmt.Sprintf(`299 - "This version of the %s endpoint is deprecated. Please use a newer version."`, strings.ToLower(z.kind)))
	}
	w.Header().Set("Content-Type", media)
	_, _ = w.Write(b)
}
