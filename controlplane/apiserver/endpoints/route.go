package endpoints

import (
	"net/http"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const streamTypes = typeJSON + ";stream=watch, " + typeProtobuf + ";stream=watch"

// routed refuses what upstream's router does before any handler sees it, in the
// router's words: media types that are not served or not accepted.
func (c *call) routed() error {
	if c.custom != nil {
		return nil
	}
	if c.info.Verb == "patch" {
		if _, err := c.patchType(); err != nil {
			return err
		}
	}
	if routable(c.r.Header.Get("Accept")) {
		return nil
	}
	types := typeJSON + ", " + typeYAML + ", " + typeProtobuf
	if c.info.Verb == "list" || c.info.Verb == "watch" {
		types += ", " + streamTypes
	}
	return unroutable(types)
}

// unroutable is a request for a form that a path has not.
func unroutable(types string) error {
	err := statusError(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable, "406: Not Acceptable\n\nAvailable representations: "+types)
	err.ErrStatus.Details = &metav1.StatusDetails{}
	return err
}

// routable says that a resource has one of the types accepted. The router knows
// one wildcard only.
func routable(accept string) bool {
	if accept == "" || strings.HasPrefix(accept, typeJSON) || strings.HasPrefix(accept, typeProtobuf) {
		return true
	}
	for part := range strings.SplitSeq(accept, ",") {
		media, _, _ := strings.Cut(part, ";")
		switch strings.TrimSpace(media) {
		case "*/*", typeJSON, typeYAML, typeProtobuf:
			return true
		}
	}
	return false
}

// Unroutable refuses a request that does not accept the one type a path has.
func Unroutable(w http.ResponseWriter, r *http.Request, only string) bool {
	if routableAs(r, only) {
		return false
	}
	writeStatus(w, r, unroutable(only))
	return true
}

// routableAs says that one type will do.
func routableAs(r *http.Request, only string) bool {
	accept := r.Header.Get("Accept")
	if accept == "" {
		return true
	}
	for part := range strings.SplitSeq(accept, ",") {
		media, _, _ := strings.Cut(part, ";")
		if media = strings.TrimSpace(media); media == "*/*" || media == only {
			return true
		}
	}
	return false
}
