# %% [markdown]
# # Calibrated digits
#
# First text.

# %%
import matplotlib.pyplot as plt

print("hello")
plt.plot([1, 2, 3])
plt.show()
