package endpoints

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"strings"
	"sync"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/mergepatch"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"knarr/controlplane/apiserver/registry"
)

// maxPatchOperations bounds a JSON patch.
const maxPatchOperations = 10000

// maxPatchItems bounds each list of a strategic merge patch: merging takes time
// with its square.
const maxPatchItems = 10000

// patch changes an object by the rules of the body's content type.
func (c *call) patch() error {
	kind, err := c.patchType()
	if err != nil {
		return err
	}
	opts, err := c.patchOptions(kind)
	if err != nil {
		return err
	}
	if c.out, err = c.negotiate(false); err != nil {
		return err
	}
	if err := c.readBody(); err != nil {
		return err
	}
	c.auditPatch()
	w := c.newWrite(opts, opts.FieldManager, opts.DryRun)
	p := &patch{write: w, kind: kind, options: opts}
	mayCreate := kind == types.ApplyYAMLPatchType && c.sub == nil
	rec, obj, created, err := w.change(c.ctx, mayCreate, p.make)
	if err != nil {
		return err
	}
	if c.sub != nil && c.sub.GetScale != nil {
		return c.answerScale(http.StatusOK, rec, obj)
	}
	if created {
		return c.answer(http.StatusCreated, rec, obj)
	}
	return c.answer(http.StatusOK, rec, obj)
}

func (c *call) patchType() (types.PatchType, error) {
	media, _, err := mime.ParseMediaType(c.r.Header.Get("Content-Type"))
	if err == nil {
		switch kind := types.PatchType(media); kind {
		case types.JSONPatchType, types.MergePatchType, types.ApplyYAMLPatchType:
			return kind, nil
		case types.StrategicMergePatchType:
			if c.custom == nil {
				return kind, nil
			}
		}
	}
	if c.custom != nil {
		return "", unsupportedMedia("application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml")
	}
	refusal := statusError(http.StatusUnsupportedMediaType, metav1.StatusReasonUnsupportedMediaType, "415: Unsupported Media Type")
	refusal.ErrStatus.Details = &metav1.StatusDetails{}
	return "", refusal
}

// A patch is one request's, read once and applied as often as needed.
type patch struct {
	*write
	kind    types.PatchType
	options *metav1.PatchOptions

	json   jsonpatch.Patch
	merge  map[string]any // merge and strategic merge
	want   *unstructured.Unstructured
	strict []error
	warned bool

	wasRead bool // the body is looked at when there is an object to change

	patched []byte // what a JSON or merge patch made, for its faults
}

// maxPatchCopies bounds what the copies of one JSON patch add in bytes: a few
// that copy an object into itself would fill the memory.
const maxPatchCopies = 3 << 20

// boundCopies is for clients' patches and webhooks': the library has one bound
// for the whole process.
var boundCopies = sync.OnceFunc(func() { jsonpatch.AccumulatedCopySizeLimit = maxPatchCopies })

// read parses the body.
func (p *patch) read() error {
	switch p.kind {
	case types.JSONPatchType:
		var err error
		if p.json, err = jsonpatch.DecodePatch(p.body); err != nil {
			return apierrors.NewBadRequest("error decoding patch: " + strings.Replace(err.Error(), "jsonpatch.Patch", "[]handlers.jsonPatchOp", 1))
		}
		if len(p.json) > maxPatchOperations {
			return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("The allowed maximum operations in a JSON patch is %d, got %d", maxPatchOperations, len(p.json)))
		}
		// A field twice in one operation is a fault only for the strict.
		var ops []any
		if strict, err := kjson.UnmarshalStrict(p.body, &ops); err == nil {
			for _, e := range strict {
				p.strict = append(p.strict, fmt.Errorf("json patch %v", e))
			}
		}
	case types.MergePatchType, types.StrategicMergePatchType:
		strict, err := kjson.UnmarshalStrict(p.body, &p.merge)
		if err != nil && p.kind == types.StrategicMergePatchType {
			return apierrors.NewBadRequest(err.Error())
		}
		if err != nil {
			return apierrors.NewBadRequest(fmt.Sprintf("error decoding patch: %v", err))
		}
		if n := longestList(p.merge); n > maxPatchItems && p.kind == types.StrategicMergePatchType {
			return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("The allowed maximum items in a list of a strategic merge patch is %d, got %d", maxPatchItems, n))
		}
		if p.options.FieldValidation != metav1.FieldValidationIgnore {
			p.strict = strict
		}
	case types.ApplyYAMLPatchType:
		p.want = &unstructured.Unstructured{Object: map[string]any{}}
		data, err := yaml.YAMLToJSON(p.body)
		if err == nil {
			err = kjson.UnmarshalCaseSensitivePreserveInts(data, &p.want.Object)
		}
		if err != nil {
			if whole := yaml.Unmarshal(p.body, &map[string]any{}); whole != nil {
				err = whole // says more of where
			}
			return apierrors.NewBadRequest(fmt.Sprintf("error decoding YAML: %v", err))
		}
		if p.options.FieldValidation != metav1.FieldValidationIgnore {
			if err := yaml.UnmarshalStrict(p.body, &map[string]any{}); err != nil {
				if p.options.FieldValidation == metav1.FieldValidationStrict {
					return apierrors.NewBadRequest(fmt.Sprintf("error strict decoding YAML: %v", err))
				}
				p.strict = append(p.strict, err)
			}
		}
	}
	return nil
}

// longestList is how many items the longest list in v has.
func longestList(v any) (longest int) {
	switch v := v.(type) {
	case map[string]any:
		for _, inner := range v {
			longest = max(longest, longestList(inner))
		}
	case []any:
		longest = len(v)
		for _, inner := range v {
			longest = max(longest, longestList(inner))
		}
	}
	return longest
}

// make is what the patch makes of old.
func (p *patch) make(ctx context.Context, old registry.Object) (obj registry.Object, err error) {
	if !p.wasRead {
		if err := p.read(); err != nil {
			return nil, err
		}
		p.wasRead = true
	}
	if p.sub != nil && p.sub.GetScale != nil {
		return p.makeScale(old)
	}
	if p.kind == types.ApplyYAMLPatchType {
		obj, err = p.apply(old)
	} else if obj, err = p.merged(old, p.gvk, p.res.New); err == nil {
		p.res.Defaults(obj)
	}
	if err != nil {
		return nil, err
	}
	if old == nil && obj.GetUID() != "" {
		return nil, apierrors.NewConflict(p.gvr.GroupResource(), p.info.Name,
			fmt.Errorf("uid mismatch: the provided object specified uid %s, and no existing object was found", obj.GetUID()))
	}
	if err := p.namespaceOf(obj); err != nil {
		return nil, err
	}
	if err := p.checkName(obj); err != nil {
		return nil, err
	}
	p.dedupOwners(obj)
	if p.kind != types.ApplyYAMLPatchType {
		obj = p.managers.update(old, obj, p.manager, p.info.Subresource)
	}
	return obj, nil
}

// merged is old with a JSON, merge or strategic merge patch applied.
func (p *patch) merged(old registry.Object, gvk schema.GroupVersionKind, empty func() registry.Object) (registry.Object, error) {
	if p.merge != nil && p.custom == nil {
		if obj, ok, err := p.mergedParts(old, empty()); ok || err != nil {
			return obj, err
		}
	}
	if p.kind == types.StrategicMergePatchType {
		return p.strategic(old, empty())
	}
	whole := copyOf(old)
	setKind(whole, gvk)
	before, err := encodeJSON(whole, false)
	if err != nil {
		return nil, err
	}
	var after []byte
	if p.kind == types.JSONPatchType {
		if after, err = p.json.Apply(before); err != nil {
			return nil, unprocessable(err)
		}
	} else if after, err = jsonpatch.MergePatch(before, p.body); err != nil {
		if errors.Is(err, jsonpatch.ErrBadJSONPatch) {
			return nil, apierrors.NewBadRequest(err.Error())
		}
		return nil, unprocessable(err)
	}
	obj := empty()
	p.patched = after
	strict, err := decodePatched(after, obj)
	if err != nil {
		return nil, p.invalid(err)
	}
	more, err := p.coerce(obj, p.options.FieldValidation != metav1.FieldValidationIgnore)
	if err != nil {
		return nil, err
	}
	found := obj.GetObjectKind().GroupVersionKind()
	if _, custom := obj.(*unstructured.Unstructured); found != gvk && !custom {
		return nil, p.invalid(errors.New(notHandled(found, gvk)))
	}
	if err := p.strictPatch(append(strict, more...)); err != nil {
		return nil, err
	}
	if found != gvk {
		return nil, otherKind(obj.(*unstructured.Unstructured), gvk)
	}
	dropKind(obj, gvk)
	return obj, nil
}

func decodePatched(data []byte, obj registry.Object) ([]error, error) {
	if u, ok := obj.(*unstructured.Unstructured); ok {
		u.Object = nil
		return kjson.UnmarshalStrict(data, &u.Object)
	}
	return kjson.UnmarshalStrict(data, obj)
}

func unprocessable(err error) error {
	return apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "", err.Error(), 0, false)
}

// invalid is a patch that makes no object.
func (p *patch) invalid(err error) error {
	text := string(bytes.TrimSuffix(p.patched, newline))
	if p.patched == nil {
		text = string(p.body)
	}
	if p.kind == types.StrategicMergePatchType {
		text = fmt.Sprintf("%+v", p.merge)
	}
	return apierrors.NewInvalid(schema.GroupKind{}, "", field.ErrorList{field.Invalid(field.NewPath("patch"), text, err.Error())})
}

// strictPatch refuses or warns of unknown and double fields.
func (p *patch) strictPatch(strict []error) error {
	all := append(p.strict[:len(p.strict):len(p.strict)], strict...)
	if len(all) == 0 {
		return nil
	}
	switch p.options.FieldValidation {
	case metav1.FieldValidationIgnore:
	case metav1.FieldValidationStrict:
		return p.invalid(runtime.NewStrictDecodingError(all))
	default:
		if !p.warned {
			p.warned = true
			return p.strictness(all, metav1.FieldValidationWarn, p.gvk)
		}
	}
	return nil
}

func (p *patch) mergeMaps(before, changes map[string]any, like registry.Object) (map[string]any, error) {
	if p.kind == types.MergePatchType {
		return mergeMap(before, changes), nil
	}
	after, err := strategicpatch.StrategicMergeMapPatch(before, changes, like)
	if err != nil {
		return nil, strategicError(err)
	}
	return after, nil
}

// mergeMap is RFC 7386 on maps of our own.
func mergeMap(to, changes map[string]any) map[string]any {
	for key, value := range changes {
		switch v := value.(type) {
		case nil:
			delete(to, key)
		case map[string]any:
			inner, _ := to[key].(map[string]any)
			if inner == nil {
				inner = map[string]any{}
			}
			to[key] = mergeMap(inner, v)
		default:
			to[key] = v
		}
	}
	return to
}

func (p *patch) fromMap(m map[string]any, into registry.Object) error {
	err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(m, into, p.options.FieldValidation != metav1.FieldValidationIgnore)
	var strict []error
	if err != nil {
		s, ok := runtime.AsStrictDecodingError(err)
		if !ok {
			return p.invalid(err)
		}
		strict = s.Errors()
	}
	return p.strictPatch(strict)
}

// strategic merges with the lists' keys that the Go types declare.
func (p *patch) strategic(old, empty registry.Object) (registry.Object, error) {
	before, err := runtime.DefaultUnstructuredConverter.ToUnstructured(old)
	if err != nil {
		return nil, err
	}
	after, err := p.mergeMaps(before, runtime.DeepCopyJSON(p.merge), empty)
	if err != nil {
		return nil, err
	}
	if err := p.fromMap(after, empty); err != nil {
		return nil, err
	}
	dropKind(empty, p.gvk)
	return empty, nil
}

func strategicError(err error) error {
	switch {
	case errors.Is(err, mergepatch.ErrBadJSONDoc), errors.Is(err, mergepatch.ErrBadPatchFormatForPrimitiveList),
		errors.Is(err, mergepatch.ErrBadPatchFormatForRetainKeys), errors.Is(err, mergepatch.ErrBadPatchFormatForSetElementOrderList),
		errors.Is(err, mergepatch.ErrUnsupportedStrategicMergePatchFormat):
		return apierrors.NewBadRequest(err.Error())
	case errors.Is(err, mergepatch.ErrNoListOfLists), errors.Is(err, mergepatch.ErrPatchContentNotMatchRetainKeys):
		return unprocessable(err)
	}
	return statusError(http.StatusInternalServerError, "", err.Error())
}

// apply is server-side apply.
func (p *patch) apply(old registry.Object) (registry.Object, error) {
	force := p.options.Force != nil && *p.options.Force
	obj, err := p.managers.apply(old, p.want.DeepCopy(), p.manager, p.info.Subresource, force)
	if err != nil {
		return nil, err
	}
	if p.options.FieldValidation != metav1.FieldValidationIgnore && p.custom == nil {
		// Merging has dropped what the kind does not know; look at the request.
		data, err := json.Marshal(p.want.Object)
		if err != nil {
			return nil, err
		}
		strict, err := kjson.UnmarshalStrict(bytes.TrimSpace(data), p.res.New())
		if err == nil {
			if err := p.strictPatch(strict); err != nil {
				return nil, err
			}
		}
	}
	p.res.Defaults(obj)
	return obj, nil
}
