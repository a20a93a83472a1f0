"""From named sources to one answer."""

from .models import by_model, config_beside, model_of

__all__ = ["by_model", "config_beside", "model_of"]
