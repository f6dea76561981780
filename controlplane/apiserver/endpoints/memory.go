package endpoints

import (
	"bytes"
	"net/http"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/types"

	"knarr/controlplane/apiserver/request"
	"knarr/controlplane/apiserver/watchcache"
)

// How many times more memory than one of JSON a byte takes while it is processed.
const (
	yamlTimes = 4  // each word is a node of the document first
	ruleTimes = 64 // a rule of thirty bytes is a compiled program of 100 kB
)

// reserveForBody reserves memory for a body that is to be decoded.
func (c *call) reserveForBody(f format) error {
	size := len(c.body)
	if f == formatYAML {
		size *= yamlTimes
	}
	return c.reserve(size)
}

// reserveForList reserves memory for a list of so many bytes that is held as a whole.
func (c *call) reserveForList(size int) error {
	if c.out.format == formatYAML {
		size *= yamlTimes
	}
	return c.reserve(size)
}

// reserve reserves memory for so many bytes of one of the resource's objects.
func (c *call) reserve(size int) error {
	if size > request.ExpensiveSize/ruleTimes {
		switch c.gvr.Group {
		case apiextensionsv1.GroupName, admissionregistrationv1.GroupName:
			size *= ruleTimes
		}
	}
	return c.info.ReserveMemory(size)
}

// reserveForChange reserves memory for a change of current, which is decoded and encoded with it.
func (w *write) reserveForChange(current *watchcache.Record) error {
	if w.r == nil { // the server's own
		return nil
	}
	size := len(w.body)
	if current != nil {
		size += current.Size()
	}
	if w.r.Method == http.MethodPatch {
		switch kind := w.r.Header.Get("Content-Type"); {
		case strings.HasPrefix(kind, string(types.JSONPatchType)):
			size = copied(size, bytes.Count(w.body, copyOperation))
		case strings.HasPrefix(kind, string(types.ApplyYAMLPatchType)):
			size *= yamlTimes
		}
	}
	return w.reserve(size)
}

var copyOperation = []byte(`"copy"`)

// copied is what size may grow to: each copy of a JSON patch may double an
// object, until the bound of all copies together.
func copied(size, copies int) int {
	most := size + maxPatchCopies
	for ; copies > 0 && size < most; copies-- {
		size *= 2
	}
	return min(size, most)
}
