package encryption

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// What a KMS plugin may say at most, in bytes.
const (
	maxKeyID       = 1 << 10
	maxSource      = 1 << 10
	maxAnnotations = 32 << 10
)

// A source is what a key was made of: the key itself, or a seed from which each
// value's own key is derived.
type source uint64

const (
	keySource source = iota
	seedSource
)

// An envelope is a sealed value beside its sealed key, upstream's message
// EncryptedObject.
type envelope struct {
	data        []byte
	keyID       string
	source      []byte
	annotations map[string][]byte
	kind        source
}

const (
	dataField protowire.Number = iota + 1
	keyIDField
	sourceField
	annotationsField
	kindField
)

func (e *envelope) append(b []byte) []byte {
	bytes := func(n protowire.Number, v []byte) {
		b = protowire.AppendBytes(protowire.AppendTag(b, n, protowire.BytesType), v)
	}
	bytes(dataField, e.data)
	bytes(keyIDField, []byte(e.keyID))
	bytes(sourceField, e.source)
	for k, v := range e.annotations {
		pair := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), k)
		bytes(annotationsField, protowire.AppendBytes(protowire.AppendTag(pair, 2, protowire.BytesType), v))
	}
	if e.kind != keySource {
		b = protowire.AppendVarint(protowire.AppendTag(b, kindField, protowire.VarintType), uint64(e.kind))
	}
	return b
}

// fields calls each for the fields of a message.
func fields(b []byte, each func(n protowire.Number, v []byte, number uint64)) error {
	for len(b) > 0 {
		n, typ, size := protowire.ConsumeTag(b)
		if size < 0 {
			return protowire.ParseError(size)
		}
		b = b[size:]
		var v []byte
		var number uint64
		switch typ {
		case protowire.BytesType:
			v, size = protowire.ConsumeBytes(b)
		case protowire.VarintType:
			number, size = protowire.ConsumeVarint(b)
		default:
			size = protowire.ConsumeFieldValue(n, typ, b)
		}
		if size < 0 {
			return protowire.ParseError(size)
		}
		each(n, v, number)
		b = b[size:]
	}
	return nil
}

func parseEnvelope(b []byte) (*envelope, error) {
	e := &envelope{}
	var wrong error
	err := fields(b, func(n protowire.Number, v []byte, number uint64) {
		switch n {
		case dataField:
			e.data = v
		case keyIDField:
			e.keyID = string(v)
		case sourceField:
			e.source = v
		case kindField:
			e.kind = source(number)
		case annotationsField:
			var key string
			var value []byte
			err := fields(v, func(n protowire.Number, v []byte, _ uint64) {
				switch n {
				case 1:
					key = string(v)
				case 2:
					value = v
				}
			})
			wrong = errors.Join(wrong, err)
			if e.annotations == nil {
				e.annotations = map[string][]byte{}
			}
			e.annotations[key] = value
		}
	})
	if err = errors.Join(err, wrong); err != nil {
		return nil, err
	}
	if len(e.data) == 0 && e.kind <= seedSource {
		return nil, errors.New("encrypted data is empty")
	}
	return e, e.check()
}

// check judges everything but the data.
func (e *envelope) check() error {
	if e.kind > seedSource {
		return fmt.Errorf("unknown encryptedDEKSourceType: %d", e.kind)
	}
	var err error
	switch n := len(e.source); {
	case n == 0:
		err = errors.New("encrypted DEK source is empty")
	case n > maxSource:
		err = fmt.Errorf("encrypted DEK source is %d bytes, which exceeds the max size of %d", n, maxSource)
	}
	if err != nil {
		return fmt.Errorf("failed to validate encrypted DEK source: %w", err)
	}
	if _, err := checkKeyID(e.keyID); err != nil {
		return fmt.Errorf("failed to validate key id: %w", err)
	}
	size := 0
	var errs field.ErrorList
	for k, v := range e.annotations {
		errs = append(errs, validation.IsFullyQualifiedDomainName(field.NewPath("annotations"), k)...)
		size += len(k) + len(v)
	}
	err = errs.ToAggregate()
	if size > maxAnnotations {
		err = errors.Join(err, fmt.Errorf("total size of annotations is %d, which exceeds the max size of %d", size, maxAnnotations))
	}
	if err != nil {
		return fmt.Errorf("failed to validate annotations: %w", err)
	}
	return nil
}

// checkKeyID also says what the metrics call the fault.
func checkKeyID(id string) (code string, err error) {
	switch n := len(id); {
	case n == 0:
		return "empty", errors.New("keyID is empty")
	case n > maxKeyID:
		return "too_long", fmt.Errorf("keyID is %d bytes, which exceeds the max size of %d", n, maxKeyID)
	}
	return "", nil
}
