"""Expression trees and their analysis, without arrays."""
