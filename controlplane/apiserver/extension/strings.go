package extension

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/validation"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// goodStrings demands of labels and annotations from outside what is demanded
// of everybody's.
func goodStrings(name string, table map[string]any) error {
	plain := make(map[string]string, len(table))
	for key, value := range table {
		text, ok := value.(string)
		if !ok {
			return fmt.Errorf("metadata.%s[%s] must be a string, but is %T in converted object", name, key, value)
		}
		plain[key] = text
	}
	var errs field.ErrorList
	if name == "labels" {
		errs = metav1validation.ValidateLabels(plain, field.NewPath("metadata", "labels"))
	} else {
		errs = validation.ValidateAnnotations(plain, field.NewPath("metadata", "annotation"))
	}
	if len(errs) > 0 {
		return errs.ToAggregate()
	}
	return nil
}
