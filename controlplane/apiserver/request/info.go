package request

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/api/validation/path"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Info is what a request asks for. Authorisation, audit and the handlers all
// read this one reading of the URL, so that they cannot disagree.
type Info struct {
	// IsResource tells API objects from other paths such as /version.
	IsResource bool
	Path       string
	// Verb is get, list, watch, create, update, patch, delete or
	// deletecollection for resources, the lower-case method otherwise.
	Verb string

	Prefix      string // "api" or "apis"
	Group       string
	Version     string
	Namespace   string
	Resource    string
	Subresource string
	Name        string
	// Parts are the path from the resource on: resource, name, subresource,
	// and what a proxied path adds.
	Parts []string

	// FieldSelector and LabelSelector are the raw selectors of list, watch
	// and deletecollection.
	FieldSelector, LabelSelector string
	// Fields is FieldSelector, when it had to be understood here; else nil.
	Fields fields.Selector

	// Memory limits what the request makes the server hold; nil: nothing does.
	Memory MemoryLimiter

	waited int64 // atomically
}

// ExpensiveSize is the size in bytes from which on memory is reserved for a request.
const ExpensiveSize = 64 << 10

// A MemoryLimiter lets only so much be processed at once.
type MemoryLimiter interface {
	// Reserve returns once a request of so many bytes may go on, or with why it
	// may not. Only the first reservation of a request counts.
	Reserve(bytes int) error
}

// ReserveMemory is to be called before work that takes memory in proportion to so many
// bytes, of the request or of the object that it changes.
func (i *Info) ReserveMemory(bytes int) error {
	if bytes <= ExpensiveSize || i.Memory == nil {
		return nil
	}
	return i.Memory.Reserve(bytes)
}

// Wait notes time that the request spent waiting for others: a seat, a webhook.
// A nil Info notes nothing.
func (i *Info) Wait(d time.Duration) {
	if i != nil {
		atomic.AddInt64(&i.waited, int64(d))
	}
}

// Waited is all that time.
func (i *Info) Waited() time.Duration { return time.Duration(atomic.LoadInt64(&i.waited)) }

// GroupVersion of the resource.
func (i *Info) GroupVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: i.Group, Version: i.Version}
}

// GroupResource of the resource.
func (i *Info) GroupResource() schema.GroupResource {
	return schema.GroupResource{Group: i.Group, Resource: i.Resource}
}

// IsLongRunning says that the request may take as long as its client likes.
func (i *Info) IsLongRunning() bool {
	if !i.IsResource {
		return false
	}
	switch i.Verb {
	case "watch", "proxy":
		return true
	}
	switch i.Subresource {
	case "attach", "exec", "proxy", "log", "portforward":
		return true
	}
	return false
}

// ParseInfo reads r. An error is a URL that no rule covers: 400.
func ParseInfo(r *http.Request) (*Info, error) {
	info := &Info{Path: r.URL.Path, Verb: strings.ToLower(r.Method)}
	parts := splitPath(r.URL.Path)
	if len(parts) < 3 || parts[0] != "api" && parts[0] != "apis" {
		return info, nil
	}
	info.Prefix, parts = parts[0], parts[1:]
	if info.Prefix == "apis" {
		if len(parts) < 3 {
			return info, nil
		}
		info.Group, parts = parts[0], parts[1:]
	}
	info.IsResource = true
	info.Version, parts = parts[0], parts[1:]

	special := parts[0] == "proxy" || parts[0] == "watch"
	if special {
		if len(parts) < 2 {
			return nil, fmt.Errorf("unable to determine kind and namespace from url, %v", r.URL)
		}
		info.Verb, parts = parts[0], parts[1:]
	} else {
		info.Verb = verbOf(r.Method)
	}

	if parts[0] == "namespaces" && len(parts) > 1 {
		info.Namespace = parts[1]
		// "status" and "finalize" are of the namespace itself; anything else
		// is a resource in it.
		if len(parts) > 2 && parts[2] != "status" && parts[2] != "finalize" {
			parts = parts[2:]
		}
	}
	info.Parts = parts
	info.Resource = parts[0]
	if len(parts) > 1 {
		info.Name = parts[1]
	}
	if len(parts) > 2 && !special {
		info.Subresource = parts[2]
	}
	info.collection(r.URL.RawQuery)
	return info, nil
}

// collection settles the verbs that differ when no name is in the path.
func (i *Info) collection(rawQuery string) {
	if i.Name == "" {
		switch i.Verb {
		case "get":
			i.Verb = "list"
		case "delete":
			i.Verb = "deletecollection"
		}
	}
	switch i.Verb {
	case "list", "watch", "deletecollection":
	default:
		return
	}
	if rawQuery == "" {
		return
	}
	query, err := url.ParseQuery(rawQuery)
	if err != nil {
		return
	}
	i.FieldSelector, i.LabelSelector = query.Get("fieldSelector"), query.Get("labelSelector")
	if i.Name != "" {
		return
	}
	if i.Verb == "list" && isTrue(query, "watch") {
		i.Verb = "watch"
	}
	if i.Verb == "deletecollection" || i.FieldSelector == "" {
		return
	}
	// One named object watched by selector is authorised by its name.
	selector, err := fields.ParseSelector(i.FieldSelector)
	if err != nil {
		return
	}
	i.Fields = selector
	if name, ok := selector.RequiresExactMatch(metav1.ObjectNameField); ok && len(path.IsValidPathSegmentName(name)) == 0 {
		i.Name = name
	}
}

// isTrue reads a boolean parameter as the API does: present and not "false"
// or "0".
func isTrue(query url.Values, key string) bool {
	values, ok := query[key]
	if !ok || len(values) == 0 {
		return false
	}
	switch strings.ToLower(values[0]) {
	case "false", "0":
		return false
	}
	return true
}

func verbOf(method string) string {
	switch method {
	case http.MethodPost:
		return "create"
	case http.MethodGet, http.MethodHead:
		return "get"
	case http.MethodPut:
		return "update"
	case http.MethodPatch:
		return "patch"
	case http.MethodDelete:
		return "delete"
	}
	return ""
}

func splitPath(p string) []string {
	p = strings.Trim(p, "/")
	if p == "" {
		return nil
	}
	return strings.Split(p, "/")
}
