package extension

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
)

// A ruleNode is the rules of a part of a schema. What they say of a value depends on nothing
// but the value, unless one of them reads oldSelf: so values that keep them all are remembered,
// and a write of the status, or of one field, has the rules of the rest not asked again.
// Whatever is wrong is upstream's to say: only that nothing is wrong is found here.
type ruleNode struct {
	id         uint64
	all        *cel.Validator // with those of the parts
	own        *cel.Validator // of the value as a whole
	items      *ruleNode
	additional *ruleNode
	properties map[string]*ruleNode
	transition bool // one of them, or of the parts', reads oldSelf
}

var ruleNodes atomic.Uint64

func newRuleNode(v *cel.Validator) *ruleNode {
	if v == nil {
		return nil
	}
	own := *v
	own.Items, own.Properties, own.AdditionalProperties = nil, nil, nil
	n := &ruleNode{id: ruleNodes.Add(1), all: v, own: &own, items: newRuleNode(v.Items), additional: newRuleNode(v.AdditionalProperties),
		transition: readsOldSelf(v.Schema)}
	for name, of := range v.Properties {
		if n.properties == nil {
			n.properties = make(map[string]*ruleNode, len(v.Properties))
		}
		n.properties[name] = newRuleNode(&of)
	}
	return n
}

// readsOldSelf says whether the word is in any rule of a schema.
func readsOldSelf(s *schema.Structural) (found bool) {
	look := func(x schema.ValidationExtensions) {
		for _, r := range x.XValidations {
			found = found || strings.Contains(r.Rule, "oldSelf") || strings.Contains(r.MessageExpression, "oldSelf")
		}
	}
	v := schema.Visitor{
		Structural:            func(s *schema.Structural) bool { look(s.ValidationExtensions); return false },
		NestedValueValidation: func(v *schema.NestedValueValidation) bool { look(v.ValidationExtensions); return false },
	}
	v.Visit(s)
	return found
}

// An asking asks rules of one object.
type asking struct {
	ctx  context.Context
	kept *keptRules
	buf  []byte
}

// keep reports whether an object keeps all rules, at a cost below the budget. The object
// itself is not remembered: its metadata differs each time.
func (n *ruleNode) keep(ctx context.Context, kept *keptRules, obj, old map[string]any, budget int64) bool {
	a := asking{ctx: ctx, kept: kept}
	var before any
	if old != nil {
		before = old
	}
	left, ok := a.parts(n, obj, before, budget)
	return ok && left > 0
}

// ask returns what is left of the budget, and whether a value keeps the rules.
func (a *asking) ask(n *ruleNode, value, old any, budget int64) (left int64, ok bool) {
	if value == nil {
		return budget, true
	}
	if n.transition {
		return a.parts(n, value, old, budget)
	}
	key, remember := a.key(n, value)
	if remember {
		if cost, known := a.kept.cost(key); known {
			return budget - cost, true
		}
	}
	left, ok = a.parts(n, value, nil, budget)
	if ok && remember {
		a.kept.add(key, budget-left)
	}
	return left, ok
}

// parts asks the rules of a value, and those of its parts.
func (a *asking) parts(n *ruleNode, value, old any, budget int64) (left int64, ok bool) {
	object, isObject := value.(map[string]any)
	if n.transition && !isObject {
		errs, left := n.all.Validate(a.ctx, nil, nil, value, old, budget) // it knows which item was which
		return left, len(errs) == 0
	}
	errs, left := n.own.Validate(a.ctx, nil, nil, value, old, budget)
	if len(errs) > 0 {
		return left, false
	}
	if items, isList := value.([]any); isList && n.items != nil {
		for _, item := range items {
			if left, ok = a.ask(n.items, item, nil, left); !ok || left <= 0 {
				return left, false
			}
		}
	}
	var before map[string]any
	if cel.MapIsCorrelatable(n.all.Schema.XMapType) {
		before, _ = old.(map[string]any)
	}
	for name, part := range object {
		for _, of := range [...]*ruleNode{n.additional, n.properties[name]} {
			if of == nil {
				continue
			}
			if left, ok = a.ask(of, part, before[name], left); !ok || left <= 0 {
				return left, false
			}
		}
	}
	return left, true
}

// maxRemembered is how many bytes a value has at most that is remembered: of a longer one, its
// parts are.
const maxRemembered = 16 << 10

// A keptKey is a value that was asked of a ruleNode.
type keptKey struct {
	node   uint64
	digest [sha256.Size]byte
}

func (a *asking) key(n *ruleNode, value any) (k keptKey, ok bool) {
	if a.buf, ok = appendValue(a.buf[:0], value); !ok {
		return k, false
	}
	return keptKey{n.id, sha256.Sum256(a.buf)}, true
}

// appendValue writes a value so that no other one is written alike. It gives up on one that is
// too long.
func appendValue(out []byte, value any) (_ []byte, ok bool) {
	if len(out) > maxRemembered {
		return out, false
	}
	text := func(s string) { out = append(binary.AppendUvarint(out, uint64(len(s))), s...) }
	switch v := value.(type) {
	case nil:
		return append(out, 'n'), true
	case bool:
		if v {
			return append(out, 't'), true
		}
		return append(out, 'f'), true
	case int64:
		return binary.BigEndian.AppendUint64(append(out, 'i'), uint64(v)), true
	case float64:
		return binary.BigEndian.AppendUint64(append(out, 'd'), math.Float64bits(v)), true
	case string:
		out = append(out, 's')
		text(v)
		return out, len(out) <= maxRemembered
	case []any:
		out = binary.AppendUvarint(append(out, 'l'), uint64(len(v)))
		for _, item := range v {
			if out, ok = appendValue(out, item); !ok {
				return out, false
			}
		}
		return out, true
	case map[string]any:
		out = binary.AppendUvarint(append(out, 'o'), uint64(len(v)))
		for _, name := range slices.Sorted(maps.Keys(v)) {
			text(name)
			if out, ok = appendValue(out, v[name]); !ok {
				return out, false
			}
		}
		return out, true
	}
	return out, false
}

// maxKept bounds the values that are remembered of all definitions: twice as many, some 4 MB.
const maxKept = 32 << 10

// keptRules are values that keep the rules, and what asking for that has cost. Those that
// were needed of late are in recent, and before that in older.
type keptRules struct {
	mu            sync.Mutex
	recent, older map[keptKey]int64
}

func (k *keptRules) cost(key keptKey) (cost int64, known bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if cost, known = k.recent[key]; known {
		return cost, true
	}
	if cost, known = k.older[key]; known {
		k.put(key, cost)
	}
	return cost, known
}

func (k *keptRules) add(key keptKey, cost int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.put(key, cost)
}

// put remembers one; mu is held.
func (k *keptRules) put(key keptKey, cost int64) {
	if k.recent == nil || len(k.recent) >= maxKept {
		k.recent, k.older = map[keptKey]int64{}, k.recent
	}
	k.recent[key] = cost
}
