package endpoints

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"knarr/controlplane/apiserver/registry"
	"knarr/controlplane/apiserver/request"
)

// maxBody is the largest request body.
const maxBody = 3 * 1024 * 1024

const acceptedBodies = "application/json, application/yaml, application/vnd.kubernetes.protobuf"

// readBody reads the whole body. The bytes are a pool's: release when done.
func readBody(r *http.Request) (body []byte, release func(), err error) {
	buf := getBuffer()
	release = func() { putBuffer(buf) }
	if r.ContentLength > maxBody {
		release()
		return nil, nil, tooLarge()
	}
	if r.ContentLength > 0 { // as much as comes at once; the rest, if it comes
		buf.Grow(int(min(r.ContentLength, 64<<10)) + bytes.MinRead)
	}
	if _, err := buf.ReadFrom(io.LimitReader(r.Body, maxBody+1)); err != nil {
		release()
		if status, ok := errors.AsType[*apierrors.StatusError](err); ok {
			return nil, nil, status
		}
		return nil, nil, apierrors.NewBadRequest(err.Error())
	}
	if buf.Len() > maxBody {
		release()
		return nil, nil, tooLarge()
	}
	return buf.Bytes(), release, nil
}

func tooLarge() error {
	return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d", maxBody))
}

// bodyFormat reads Content-Type.
func bodyFormat(r *http.Request) (format, error) {
	switch header := r.Header.Get("Content-Type"); header {
	case "", typeJSON:
		return formatJSON, nil
	case typeProtobuf:
		return formatProtobuf, nil
	default:
		media, _, err := mime.ParseMediaType(header)
		if err != nil {
			return 0, unsupportedMedia(acceptedBodies)
		}
		switch media {
		case typeJSON, "*/*", "application/*":
			return formatJSON, nil
		case typeYAML, "text/yaml", "application/x-yaml":
			return formatYAML, nil
		case typeProtobuf:
			return formatProtobuf, nil
		}
	}
	return 0, unsupportedMedia(acceptedBodies)
}

// decodeInto reads a document into obj. gvk is what the endpoint expects; the
// document may leave it out. strict are faults that fieldValidation decides on.
func decodeInto(f format, body []byte, obj runtime.Object, gvk schema.GroupVersionKind, wantStrict bool) (strict []error, err error) {
	switch f {
	case formatProtobuf:
		return nil, decodeProtobuf(body, obj, gvk)
	case formatYAML:
		if body, strict, err = fromYAML(body, wantStrict); err != nil {
			return nil, unrecognised(err, gvk, body)
		}
	}
	more, err := decodeJSON(body, obj, gvk, wantStrict)
	return append(strict, more...), err
}

// fromYAML is a YAML document as JSON. One without a fault is read once.
func fromYAML(body []byte, wantStrict bool) (json []byte, strict []error, err error) {
	if wantStrict {
		if json, err = yaml.YAMLToJSONStrict(body); err == nil {
			return json, nil, nil
		}
		strict = []error{err}
	}
	json, err = yaml.YAMLToJSON(body)
	return json, strict, err
}

func decodeJSON(body []byte, obj runtime.Object, gvk schema.GroupVersionKind, wantStrict bool) (strict []error, err error) {
	if len(bytes.TrimSpace(body)) == 0 {
		return nil, unrecognised(errors.New("couldn't get version/kind; json parse error: unexpected end of JSON input"), gvk, nil)
	}
	if u, ok := obj.(*unstructured.Unstructured); ok {
		return decodeCustom(body, u, gvk, wantStrict)
	} else if wantStrict {
		strict, err = kjson.UnmarshalStrict(body, obj)
	} else {
		err = kjson.UnmarshalCaseSensitivePreserveInts(body, obj)
	}
	found := obj.GetObjectKind().GroupVersionKind()
	if err != nil {
		// The kind is named in the message when it can still be read.
		var meta struct {
			APIVersion string `json:"apiVersion,omitempty"`
			Kind       string `json:"kind,omitempty"`
		}
		if merr := json.Unmarshal(body, &meta); merr != nil {
			err = fmt.Errorf("couldn't get version/kind; json parse error: %w", merr)
		} else {
			if found = schema.FromAPIVersionAndKind(meta.APIVersion, meta.Kind); found.Kind == "" {
				found = gvk
			}
			return nil, apierrors.NewBadRequest(fmt.Sprintf("%s in version %q cannot be handled as a %s: %v", found.Kind, found.Version, gvk.Kind, err))
		}
		return nil, unrecognised(err, gvk, body)
	}
	if meta, ok := obj.GetObjectKind().(*metav1.TypeMeta); ok && found.Version == "" && meta.APIVersion != "" {
		if _, err := schema.ParseGroupVersion(meta.APIVersion); err != nil {
			return nil, unrecognised(err, gvk, body)
		}
	}
	return strict, checkKind(found, gvk)
}

// unrecognised is a document that could not be read at all.
func unrecognised(err error, gvk schema.GroupVersionKind, body []byte) error {
	const longest = 30
	text := "<empty>"
	if len(body) > 0 {
		text = string(body[:min(len(body), longest)])
		if body[0] != '{' {
			text = hex.EncodeToString([]byte(text))
		}
		if len(body) > longest {
			text += " ..."
		}
	}
	return apierrors.NewBadRequest(fmt.Sprintf("the object provided is unrecognized (must be of type %s): %v (%s)", gvk.Kind, err, text))
}

// checkKind compares what a document says it is with what is wanted here.
func checkKind(found, want schema.GroupVersionKind) error {
	if found.Kind == "" {
		found.Kind = want.Kind
	}
	if found.Version == "" && found.Group == "" {
		found.Group, found.Version = want.Group, want.Version
	}
	switch {
	case found == want:
		return nil
	case !scheme.Scheme.Recognizes(found) && !scheme.Scheme.IsVersionRegistered(want.GroupVersion()) && found.Kind == want.Kind:
		// A custom kind in a version that is not this one.
	case !scheme.Scheme.Recognizes(found), found.Kind != want.Kind:
		return apierrors.NewBadRequest(fmt.Sprintf("%s in version %q cannot be handled as a %s: %s", found.Kind, found.Version, want.Kind, notHandled(found, want)))
	}
	return apierrors.NewBadRequest(fmt.Sprintf("the API version in the data (%s) does not match the expected API version (%s)",
		found.GroupVersion(), want.GroupVersion()))
}

// notHandled says why an object of one kind cannot be one of another.
func notHandled(found, want schema.GroupVersionKind) string {
	if !scheme.Scheme.Recognizes(found) {
		return unregistered(found)
	}
	return fmt.Sprintf("converting (%s) to (%s): unknown conversion", goName(found), hubName(want))
}

func unregistered(kind schema.GroupVersionKind) string {
	return fmt.Sprintf("no kind %q is registered for version %q in scheme %q", kind.Kind, kind.GroupVersion(), "pkg/runtime/scheme.go:111")
}

// goName is a kind as messages of the conversion machinery call it.
func goName(gvk schema.GroupVersionKind) string { return gvk.Version + "." + gvk.Kind }

// hubName is the same of a kind in the server.
func hubName(gvk schema.GroupVersionKind) string {
	group, _, _ := strings.Cut(gvk.Group, ".")
	if group == "" || group == "events" {
		group = "core"
	}
	return group + "." + gvk.Kind
}

type unmarshaler interface{ Unmarshal([]byte) error }

func decodeProtobuf(body []byte, obj runtime.Object, gvk schema.GroupVersionKind) error {
	if !bytes.HasPrefix(body, protobufMagic) {
		return unrecognised(errors.New("provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]"), gvk, body)
	}
	buf := getBuffer() // what the envelope holds is copied out of it, and from there into the object
	defer putBuffer(buf)
	buf.Grow(len(body))
	unknown := runtime.Unknown{Raw: buf.AvailableBuffer()}
	if err := unknown.Unmarshal(body[len(protobufMagic):]); err != nil {
		return unrecognised(err, gvk, body)
	}
	found := schema.FromAPIVersionAndKind(unknown.APIVersion, unknown.Kind)
	if err := checkKind(found, gvk); err != nil {
		return err
	}
	m, ok := obj.(unmarshaler)
	if !ok {
		return unsupportedMedia("application/json, application/yaml")
	}
	if err := m.Unmarshal(unknown.Raw); err != nil {
		return apierrors.NewBadRequest(fmt.Sprintf("%s in version %q cannot be handled as a %s: %v", gvk.Kind, gvk.Version, gvk.Kind, err))
	}
	return nil
}

// readObject reads the request's body as one of res's objects. The body is
// kept until the call ends, for decodeAgain.
func (c *call) readObject(into registry.Object, gvk schema.GroupVersionKind, validation string) error {
	f, err := bodyFormat(c.r)
	if err != nil {
		return err
	}
	if err := c.readBody(); err != nil {
		return err
	}
	if err := c.reserveForBody(f); err != nil {
		return err
	}
	c.bodyFormat = f
	strict, err := decodeInto(f, c.body, into, gvk, validation != metav1.FieldValidationIgnore)
	if err != nil {
		return err
	}
	if c.custom != nil {
		more, err := c.coerce(into, validation != metav1.FieldValidationIgnore)
		if err != nil {
			return err
		}
		strict = append(strict, more...)
	}
	if err := c.strictness(strict, validation, gvk); err != nil {
		return err
	}
	c.auditRequest(into, gvk)
	dropKind(into, gvk)
	return nil
}

// dropKind: only custom objects carry their kind inside the server.
func dropKind(obj registry.Object, gvk schema.GroupVersionKind) {
	if _, custom := obj.(*unstructured.Unstructured); !custom {
		gvk = schema.GroupVersionKind{}
	}
	obj.GetObjectKind().SetGroupVersionKind(gvk)
}

// decodeAgain reads the body a second time: the first object was changed by an
// attempt that lost.
func (c *call) decodeAgain(into registry.Object) error {
	if _, err := decodeInto(c.bodyFormat, c.body, into, c.gvk, false); err != nil {
		return err
	}
	if _, err := c.coerce(into, false); err != nil {
		return err
	}
	dropKind(into, c.gvk)
	return nil
}

// readBody reads the whole body into c.body, which lives as long as the call.
func (c *call) readBody() error {
	body, release, err := readBody(c.r)
	if err != nil {
		return err
	}
	c.body, c.release = body, release
	c.beginWrite()
	return nil
}

// strictness refuses or warns of faults that are none without field validation.
func (c *call) strictness(strict []error, validation string, gvk schema.GroupVersionKind) error {
	if len(strict) == 0 {
		return nil
	}
	switch validation {
	case metav1.FieldValidationIgnore:
	case metav1.FieldValidationStrict:
		err := runtime.NewStrictDecodingError(strict)
		return apierrors.NewBadRequest(fmt.Sprintf("%s in version %q cannot be handled as a %s: %v", gvk.Kind, gvk.Version, gvk.Kind, err))
	default:
		for _, e := range strict {
			request.Warn(c.ctx, e.Error())
		}
	}
	return nil
}

// decodeAny reads a JSON or YAML document whose kind does not matter.
func decodeAny(f format, body []byte, into any) ([]byte, error) {
	if f == formatYAML {
		var err error
		if body, err = yaml.YAMLToJSON(body); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(body, into); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return body, nil
}

func decodeDeleteProtobuf(body []byte, opts *metav1.DeleteOptions) error {
	if !bytes.HasPrefix(body, protobufMagic) {
		return unrecognised(errors.New("provided data does not appear to be a protobuf message"), deleteOptionsKind, body)
	}
	var unknown runtime.Unknown
	if err := unknown.Unmarshal(body[len(protobufMagic):]); err != nil {
		return unrecognised(err, deleteOptionsKind, body)
	}
	if unknown.Kind != "DeleteOptions" {
		return apierrors.NewBadRequest("decoded object cannot be converted to DeleteOptions")
	}
	if err := opts.Unmarshal(unknown.Raw); err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	return nil
}
